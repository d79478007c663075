package proxyconfig

import (
	"cmp"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kube-proxy's defaults (k8s.io/kubernetes pkg/proxy/apis/config/v1alpha1/defaults.go, pkg/kubelet/qos).
const (
	HealthzPort = 10256
	MetricsPort = 10249

	defaultOOMScore   = -999
	defaultPerCore    = 32 * 1024
	defaultMin        = 128 * 1024
	defaultSync       = 30 * time.Second
	defaultMinSync    = time.Second
	defaultMasquerade = 14
	defaultQPS        = 5
	defaultBurst      = 10
)

// Default fills in what a file leaves to kube-proxy, but for what has no effect. The least time between two syncs is none in mode
// nftables, where kube-proxy has a second: its changes cost as much as all services, ours what they change.
func (c *Configuration) Default() {
	c.APIVersion, c.Kind = APIVersion, Kind
	c.Mode = cmp.Or(c.Mode, ModeIPTables)
	c.DetectLocalMode = cmp.Or(c.DetectLocalMode, LocalClusterCIDR)
	c.BindAddress = cmp.Or(c.BindAddress, "0.0.0.0")
	all, loopback := "0.0.0.0", "127.0.0.1"
	if ip, err := netip.ParseAddr(c.BindAddress); err == nil && !ip.Unmap().Is4() {
		all, loopback = "::", "::1"
	}
	c.HealthzBindAddress = WithPort(cmp.Or(c.HealthzBindAddress, all), HealthzPort)
	c.MetricsBindAddress = WithPort(cmp.Or(c.MetricsBindAddress, loopback), MetricsPort)
	c.ClientConnection.QPS = cmp.Or(c.ClientConnection.QPS, defaultQPS)
	c.ClientConnection.Burst = cmp.Or(c.ClientConnection.Burst, defaultBurst)
	c.IPTables.MasqueradeBit = or(c.IPTables.MasqueradeBit, defaultMasquerade)
	c.NFTables.MasqueradeBit = or(c.NFTables.MasqueradeBit, defaultMasquerade)
	c.IPTables.LocalhostNodePorts = or(c.IPTables.LocalhostNodePorts, true)
	for _, period := range []*metav1.Duration{&c.IPTables.SyncPeriod, &c.NFTables.SyncPeriod} {
		period.Duration = cmp.Or(period.Duration, defaultSync)
	}
	c.IPTables.MinSyncPeriod.Duration = cmp.Or(c.IPTables.MinSyncPeriod.Duration, defaultMinSync)
	c.OOMScoreAdj = or(c.OOMScoreAdj, defaultOOMScore)
	c.Conntrack.MaxPerCore = or(c.Conntrack.MaxPerCore, defaultPerCore)
	c.Conntrack.Min = or(c.Conntrack.Min, defaultMin)
	c.Conntrack.TCPEstablishedTimeout = or(c.Conntrack.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	c.Conntrack.TCPCloseWaitTimeout = or(c.Conntrack.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
}

func or[T any](p *T, value T) *T {
	if p == nil {
		return &value
	}
	return p
}

// WithPort gives an address the port if it has none; other texts stay as they are.
func WithPort(address string, port int) string {
	bare := strings.TrimSuffix(strings.TrimPrefix(address, "["), "]")
	if ip, err := netip.ParseAddr(bare); err == nil {
		return net.JoinHostPort(ip.String(), strconv.Itoa(port))
	}
	return address
}
