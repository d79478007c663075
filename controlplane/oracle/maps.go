package oracle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/nftables"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/proxy"
	nftablesproxy "packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// newUpstreamMaps starts kube-proxy's nftables proxier in a namespace.
func newUpstreamMaps(ns *netns.Namespace, v Settings) (*upstream, error) {
	u := &upstream{ns: ns}
	ctx := klog.NewContext(context.Background(), klog.New(failedSyncs{&u.failure}))
	family := corev1.IPv4Protocol
	if v.IPv6 {
		family = corev1.IPv6Protocol
	}
	err := ns.Do(func() (err error) {
		health := healthcheck.NewProxyHealthServer("", time.Minute, nil)
		u.proxier, err = nftables.NewProxier(ctx, family, time.Nanosecond, time.Nanosecond, v.MasqueradeAll, v.MasqueradeBit,
			detectorOf(v), NodeName, net.ParseIP(v.NodeIP), nil, health, v.NodePortAddresses, false)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start upstream's nftables proxier: %w", err)
	}
	u.proxier.OnServiceCIDRsChanged(v.ServiceCIDRs)
	return u, nil
}

// failedSyncs is a log sink that keeps the error of a failed sync. The proxier reports that error only in its log.
type failedSyncs struct{ failure *error }

// Init implements klog.LogSink.
func (failedSyncs) Init(klog.RuntimeInfo) {}

// Enabled implements klog.LogSink.
func (failedSyncs) Enabled(int) bool { return false }

// Info implements klog.LogSink.
func (failedSyncs) Info(int, string, ...any) {}

// Error implements klog.LogSink. What else the proxier says of errors is of those that it overcomes.
func (f failedSyncs) Error(err error, message string, _ ...any) {
	if message == "nftables sync failed" {
		*f.failure = fmt.Errorf("upstream cannot load its table: %w", err)
	}
}

// WithValues implements klog.LogSink.
func (f failedSyncs) WithValues(...any) klog.LogSink { return f }

// WithName implements klog.LogSink.
func (f failedSyncs) WithName(string) klog.LogSink { return f }

// oursMaps is our service proxy with nftables in a namespace.
type oursMaps struct {
	config proxy.Config
	kernel *ruleset.NFTables
	syncer *nftablesproxy.Syncer
	ports  *service.Ports
	now    World // as told
}

func newOursMaps(ns *netns.Namespace, v Settings) (*oursMaps, error) {
	c, err := configOf(ns, v)
	if err != nil {
		return nil, err
	}
	for _, text := range v.ServiceCIDRs {
		if p := netip.MustParsePrefix(text); p.Addr().Is4() != v.IPv6 {
			c.ServiceCIDRs = append(c.ServiceCIDRs, p)
		}
	}
	k := &ruleset.NFTables{NetNS: ns.FD()}
	return &oursMaps{config: c, kernel: k, syncer: nftablesproxy.NewSyncer(c, nftablesproxy.NewRules(k)), ports: service.NewPorts()}, nil
}

// sync tells the proxy of the services that have changed, as our agent does.
func (o *oursMaps) sync(ctx context.Context, to World) error {
	to = to.watched()
	before, after := o.now.byService(), to.byService()
	var changed []service.Key
	for _, key := range slices.SortedFunc(maps.Keys(joined(before, after)), service.CompareKeys) {
		if to.Zone == o.now.Zone && equality.Semantic.DeepEqual(before[key], after[key]) {
			continue
		}
		changed = append(changed, key)
		o.ports.Put(key, service.Of(o.config.Family, service.Node{Name: NodeName, Zone: to.Zone}, after[key].Service, after[key].Slices))
	}
	o.now = to.Clone()
	return o.write(ctx, o.syncer, changed)
}

func joined[K comparable, V any](a, b map[K]V) map[K]V {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// objectsOf are the objects of one service, which may have slices only.
type objectsOf struct {
	Service *corev1.Service
	Slices  []*discoveryv1.EndpointSlice
}

func (w World) byService() map[service.Key]objectsOf {
	all := map[service.Key]objectsOf{}
	for _, s := range w.Services {
		all[service.Key{Namespace: s.Namespace, Service: s.Name}] = objectsOf{Service: s}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Slices)) {
		key := service.OfSlice(w.Slices[name])
		of := all[key]
		of.Slices = append(of.Slices, w.Slices[name])
		all[key] = of
	}
	return all
}

func (o *oursMaps) write(ctx context.Context, s *nftablesproxy.Syncer, changed []service.Key) error {
	result, err := s.Sync(ctx, o.ports, changed)
	if err := errors.Join(err, result.CleanupErr); err != nil {
		return fmt.Errorf("ours cannot write its table: %w", err)
	}
	return nil
}

// compare makes a full sync beside what is there, as after a restart: it finds nothing to write.
func (o *oursMaps) compare(ctx context.Context) error {
	result, err := nftablesproxy.NewSyncer(o.config, nftablesproxy.NewRules(o.kernel)).Sync(ctx, o.ports, nil)
	if n := result.Written[nftablesproxy.TableName]; err == nil && n > 0 {
		err = fmt.Errorf("ours finds %d elements to change in what it wrote", n)
	}
	return err
}

// fresh writes the same into another namespace, which has no table.
func (o *oursMaps) fresh(ctx context.Context, ns *netns.Namespace) error {
	s := nftablesproxy.NewSyncer(o.config, nftablesproxy.NewRules(&ruleset.NFTables{NetNS: ns.FD()}))
	return errors.Join(s.Remove(ctx), o.write(ctx, s, nil))
}
