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

// The ports of addresses that have none.
const (
	HealthzPort = 10256
	MetricsPort = 10249
)

// Default fills in what a file leaves to kube-proxy, but for what has no effect (k8s.io/kubernetes
// pkg/proxy/apis/config/v1alpha1/defaults.go, pkg/kubelet/qos). The least time between two syncs is none in mode nftables, where kube-proxy
// has a second: its changes cost as much as all services, ours what they change.
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
	c.ClientConnection.QPS = cmp.Or(c.ClientConnection.QPS, 5)
	c.ClientConnection.Burst = cmp.Or(c.ClientConnection.Burst, 10)
	c.IPTables.MasqueradeBit = or(c.IPTables.MasqueradeBit, 14)
	c.NFTables.MasqueradeBit = or(c.NFTables.MasqueradeBit, 14)
	c.IPTables.LocalhostNodePorts = or(c.IPTables.LocalhostNodePorts, true)
	for _, period := range []*metav1.Duration{&c.IPTables.SyncPeriod, &c.NFTables.SyncPeriod} {
		period.Duration = cmp.Or(period.Duration, 30*time.Second)
	}
	c.IPTables.MinSyncPeriod.Duration = cmp.Or(c.IPTables.MinSyncPeriod.Duration, time.Second)
	c.OOMScoreAdj = or(c.OOMScoreAdj, -999)
	c.Conntrack.MaxPerCore = or(c.Conntrack.MaxPerCore, 32*1024)
	c.Conntrack.Min = or(c.Conntrack.Min, 128*1024)
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
