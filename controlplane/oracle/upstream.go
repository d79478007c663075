package oracle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/iptables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	utiliptables "k8s.io/kubernetes/pkg/util/iptables"

	"packetwalk.dev/internal/kernel/netns"
)

// upstream is a proxier of kube-proxy in a namespace. Everything that touches the kernel runs on a thread of that namespace.
type upstream struct {
	ns      *netns.Namespace
	proxier proxy.Provider
	now     World // as told
	started bool
	failure error // of the last sync: the proxier only logs it
}

// tables is upstream's way to iptables, but for two things: a failed restore is remembered, because the proxier only logs it, and what
// Monitor does first, it does where the caller can choose the namespace and without watching further.
type tables struct {
	utiliptables.Interface
	failure *error
}

func (t *tables) RestoreAll(data []byte, flush utiliptables.FlushFlag, counters utiliptables.RestoreCountersFlag) error {
	err := t.Interface.RestoreAll(data, flush, counters)
	if err != nil {
		*t.failure = fmt.Errorf("upstream cannot load its rules: %w", err)
	}
	return err
}

func (t *tables) Monitor(utiliptables.Chain, []utiliptables.Table, func(), time.Duration, <-chan struct{}) {
}

// canaries makes the chains by which Monitor notices a flush (pkg/util/iptables/iptables.go).
func (t *tables) canaries() error {
	for _, table := range []utiliptables.Table{utiliptables.TableMangle, utiliptables.TableNAT, utiliptables.TableFilter} {
		if _, err := t.EnsureChain(table, "KUBE-PROXY-CANARY"); err != nil {
			return err
		}
	}
	return nil
}

// sysctls is what the proxier reads and writes of /proc/sys, without the machine's.
type sysctls map[string]int

func (s sysctls) GetSysctl(name string) (int, error) {
	if v, ok := s[name]; ok {
		return v, nil
	}
	return 0, os.ErrNotExist
}

func (s sysctls) SetSysctl(name string, v int) error {
	s[name] = v
	return nil
}

func newUpstream(ns *netns.Namespace, v Settings) (*upstream, error) {
	u := &upstream{ns: ns}
	family, protocol := corev1.IPv4Protocol, utiliptables.ProtocolIPv4
	if v.IPv6 {
		family, protocol = corev1.IPv6Protocol, utiliptables.ProtocolIPv6
	}
	settings := sysctls{"net/ipv4/conf/all/route_localnet": 0}
	if v.TCPLiberal {
		settings["net/netfilter/nf_conntrack_tcp_be_liberal"] = 1
	}
	err := ns.Do(func() (err error) {
		rules := &tables{utiliptables.New(protocol), &u.failure}
		health := healthcheck.NewProxyHealthServer("", time.Minute, nil)
		u.proxier, err = iptables.NewProxier(context.Background(), family, rules, settings, time.Nanosecond, time.Nanosecond,
			v.MasqueradeAll, v.LocalhostNodePorts && !v.IPv6, v.MasqueradeBit, detectorOf(v), NodeName, net.ParseIP(v.NodeIP), nil, health,
			v.NodePortAddresses, false)
		if err != nil {
			return err
		}
		return rules.canaries()
	})
	if err != nil {
		return nil, fmt.Errorf("start upstream's proxier: %w", err)
	}
	return u, nil
}

// detectorOf tells traffic of local pods.
func detectorOf(v Settings) proxyutil.LocalTrafficDetector {
	switch {
	case v.ClusterCIDR != "":
		return proxyutil.NewDetectLocalByCIDR(v.ClusterCIDR)
	case strings.HasSuffix(v.PodInterface, "+"):
		return proxyutil.NewDetectLocalByInterfaceNamePrefix(strings.TrimSuffix(v.PodInterface, "+"))
	case v.PodInterface != "":
		return proxyutil.NewDetectLocalByBridgeInterface(v.PodInterface)
	}
	return proxyutil.NewNoOpLocalDetector()
}

// sync tells the proxier what has changed, as informers do, and lets it write.
func (u *upstream) sync(to World) error {
	to = to.watched()
	if !u.started || to.Zone != u.now.Zone {
		u.topology(to.Zone)
	}
	u.tell(to)
	u.now = to.Clone()
	return u.write()
}

// write runs one sync to its end: each call of OnServiceSynced does, on the caller's thread.
func (u *upstream) write() error {
	u.failure = nil
	_ = u.ns.Do(func() error {
		u.proxier.OnServiceSynced()
		if !u.started {
			u.proxier.OnEndpointSlicesSynced()
		}
		return nil
	})
	u.started = true
	return u.failure
}

// rewrite makes a full sync.
func (u *upstream) rewrite() error {
	u.topology(u.now.Zone)
	return u.write()
}

func (u *upstream) topology(zone string) {
	labels := map[string]string{corev1.LabelHostname: NodeName}
	if zone != "" {
		labels[corev1.LabelTopologyZone] = zone
	}
	u.proxier.OnTopologyChange(labels)
}

func (u *upstream) tell(to World) {
	for _, key := range slices.Sorted(maps.Keys(u.now.Services)) {
		if _, stays := to.Services[key]; !stays {
			u.proxier.OnServiceDelete(u.now.Services[key])
		}
	}
	for key, s := range to.Services {
		if old, there := u.now.Services[key]; !there {
			u.proxier.OnServiceAdd(s.DeepCopy())
		} else if !equality.Semantic.DeepEqual(old, s) {
			u.proxier.OnServiceUpdate(old, s.DeepCopy())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(u.now.Slices)) {
		if _, stays := to.Slices[key]; !stays {
			u.proxier.OnEndpointSliceDelete(u.now.Slices[key])
		}
	}
	for key, s := range to.Slices {
		if old, there := u.now.Slices[key]; !there {
			u.proxier.OnEndpointSliceAdd(s.DeepCopy())
		} else if !equality.Semantic.DeepEqual(old, s) {
			u.proxier.OnEndpointSliceUpdate(old, s.DeepCopy())
		}
	}
}

// health asks a health check node port for the number of local endpoints. When no process listens, it returns "" and an error.
func (u *upstream) health(ctx context.Context, address string) (string, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return u.ns.Dial(ctx, network, addr)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	return answer.Header.Get("X-Load-Balancing-Endpoint-Weight"), answer.Body.Close()
}

// stop closes the health check servers, which would keep the namespace alive.
func (u *upstream) stop() error {
	if !u.started {
		return nil
	}
	return errors.Join(u.sync(World{}))
}
