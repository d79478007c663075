package fabric

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
)

// The names of the fabric's namespaces in Config.Dir.
const (
	FabricNamespace   = "fabric"
	InternetNamespace = "internet"
)

// Config is what a Fabric is made of.
type Config struct {
	// Dir holds the lab's namespaces; the fabric makes "fabric" and "internet" in it.
	Dir string
	// Network is what there is at the start. Update changes it later.
	Network vnet.Network
	// StateFile keeps the network and the health for a process that takes over after this one was killed: when the fabric's
	// namespace is there at Start and the file is too, they come from it and not from Network. "" keeps nothing.
	StateFile string
	// Log may be nil.
	Log *slog.Logger
	// Prober tries one back end; nil for real probes from the fabric's namespace. For tests.
	Prober Prober
	// Timing of the probes; the zero value means Azure's. For tests.
	Timing Timing
}

// Fabric is a running fabric. Its methods are safe for concurrent use.
type Fabric struct {
	cfg  Config
	life context.Context // until Close
	stop context.CancelFunc
	done sync.WaitGroup

	dirty chan struct{} // health or targets changed; one is enough
	eager atomic.Int64  // members that have never been up and are tried often

	faultMu sync.Mutex
	faults  map[string]error // what goes on failing, by what is tried

	mu       sync.Mutex // of all below, and of the kernel's state
	fabric   *netns.Namespace
	internet *netns.Namespace
	network  vnet.Network
	health   vnet.Health    // what the kernel has
	changes  []healthChange // not yet applied
	applied  appliedState
	probes   map[vnet.ProbeTarget]*memberProbe
	agents   map[string]context.CancelFunc // of machines, by their NICs
	attached map[attachment]*netns.Namespace
}

// attachment names what is wired: a machine by its NIC, or a host.
type attachment struct{ kind, name string }

// The kinds of attachments.
const (
	kindNIC  = "NIC"
	kindHost = "host"
)

// appliedState is what the kernel was brought to last; nothing of a zero one can be relied on.
type appliedState struct {
	network          vnet.Network
	health           vnet.Health
	nft              string
	fabric, internet netns.State
}

// healthChange is one back end that went up or down under a probe.
type healthChange struct {
	target vnet.ProbeTarget
	up     bool
	reason string // why it is down: the last probe's error; "" when up
}

// errNotStarted is the error of what needs the fabric's namespaces before Start.
var errNotStarted = errors.New("the fabric is not started")

// New checks the configuration. It touches nothing.
func New(cfg Config) (*Fabric, error) {
	if err := cfg.Network.Validate(); err != nil {
		return nil, fmt.Errorf("fabric: %w", err)
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	cfg.Timing = cfg.Timing.withDefaults()
	return &Fabric{
		cfg: cfg, network: cfg.Network.Clone(), health: vnet.Health{}, dirty: make(chan struct{}, 1), probes: map[vnet.ProbeTarget]*memberProbe{},
		agents: map[string]context.CancelFunc{}, faults: map[string]error{}, attached: map[attachment]*netns.Namespace{},
	}, nil
}

// Start makes the fabric's namespaces, or takes over those that are there, brings them to the plan and starts probing. The
// probes end with ctx or Close; the namespaces and their traffic stay.
func (f *Fabric) Start(ctx context.Context) error {
	f.life, f.stop = context.WithCancel(ctx)
	if err := f.start(f.life); err != nil {
		f.stop()
		return fmt.Errorf("start fabric: %w", err)
	}
	return nil
}

func (f *Fabric) start(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh, err := f.openNamespaces()
	if err != nil {
		return err
	}
	if !fresh {
		f.restore()
	}
	if err := f.prepare(); err != nil {
		return err
	}
	if err := f.apply(); err != nil {
		return err
	}
	if err := f.serveHost(ctx); err != nil {
		return err
	}
	f.done.Go(func() { f.followHealth(ctx) })
	f.done.Go(func() { f.keepSpares(ctx) })
	f.done.Go(func() { f.endIdle(ctx) })
	f.startProbes(ctx)
	return nil
}

// openNamespaces opens or makes them; fresh says that the fabric's was made.
func (f *Fabric) openNamespaces() (fresh bool, err error) {
	if f.fabric, fresh, err = netns.Ensure(filepath.Join(f.cfg.Dir, FabricNamespace)); err != nil {
		return false, err
	}
	f.internet, _, err = netns.Ensure(filepath.Join(f.cfg.Dir, InternetNamespace))
	return fresh, err
}

// prepare joins the two namespaces and gives the fabric the rules that are the same for every network.
func (f *Fabric) prepare() error {
	for _, ns := range []*netns.Namespace{f.fabric, f.internet} {
		if err := spreadReceive(ns); err != nil {
			return err
		}
	}
	plan := vnet.NewPlan(f.network, f.health)
	w := plan.Uplink
	if err := netns.EnsureVeth(end(f.fabric, w.Inside), end(f.internet, w.Outside), vnet.MTU); err != nil {
		return err
	}
	return ruleset.RestoreIPTables(f.life, f.fabric, plan.IPTables, false)
}

func end(ns *netns.Namespace, e vnet.End) netns.LinkEnd {
	return netns.LinkEnd{Namespace: ns, Name: e.Link, MAC: e.MAC, Alias: e.Alias}
}

// Close ends probing and answering. The namespaces and their traffic stay.
func (f *Fabric) Close() error {
	if f.stop != nil {
		f.stop()
	}
	f.done.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, ns := range []**netns.Namespace{&f.fabric, &f.internet} {
		if *ns != nil {
			errs = append(errs, (*ns).Close())
			*ns = nil
		}
	}
	for a := range f.attached {
		f.forgetAttached(a)
	}
	return errors.Join(errs...)
}

// Remove closes the fabric and removes its namespaces, also those of a process that was killed.
func (f *Fabric) Remove() error {
	err := f.Close()
	return errors.Join(err,
		netns.Remove(filepath.Join(f.cfg.Dir, FabricNamespace)),
		netns.Remove(filepath.Join(f.cfg.Dir, InternetNamespace)),
		f.forget())
}

// Namespace returns the fabric's namespace, nil before Start.
func (f *Fabric) Namespace() *netns.Namespace {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fabric
}

// Internet returns the namespace of the internet's router, nil before Start.
func (f *Fabric) Internet() *netns.Namespace {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.internet
}

// AttachNIC wires the NIC (by its name in the network) to a machine's namespace: eth0 with the NIC's MAC, its primary address
// with the subnet's prefix length, the default route by the subnet's gateway. A NIC that is already wired to that namespace is
// left as it is, whatever the machine did with it since. A customer's machine has an agent, which asks 168.63.129.16 for its goal state.
func (f *Fabric) AttachNIC(nic string, machine *netns.Namespace) error {
	if err := f.attach(kindNIC, nic, machine, func(p vnet.Plan) ([]vnet.Wire, *netns.Namespace) { return p.NICs, f.fabric }); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.network.NIC(nic)
	platform := slices.ContainsFunc(f.network.VNets, func(v vnet.VNet) bool { return v.Name == n.VNet && v.Platform })
	if !ok || n.ContainerGroup || platform {
		return nil
	}
	return f.startAgent(nic, machine)
}

// AttachHost wires an internet host (by its name in the network's Hosts) to a namespace: eth0 with its address as a /32 and a
// default route. The control plane is such a host.
func (f *Fabric) AttachHost(host string, ns *netns.Namespace) error {
	return f.attach(kindHost, host, ns, func(p vnet.Plan) ([]vnet.Wire, *netns.Namespace) { return p.Hosts, f.internet })
}

func (f *Fabric) attach(kind, name string, far *netns.Namespace, side func(vnet.Plan) ([]vnet.Wire, *netns.Namespace)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fail := func(err error) error { return fmt.Errorf("attach %s %s: %w", kind, name, err) }
	wires, near := side(vnet.NewPlan(f.network, f.health))
	if near == nil {
		return fail(errNotStarted)
	}
	i := slices.IndexFunc(wires, func(w vnet.Wire) bool { return w.Name == name })
	if i < 0 {
		return fail(fmt.Errorf("the network has no such %s", kind))
	}
	if err := wire(wires[i], near, far); err != nil {
		return fail(err)
	}
	if err := f.remember(attachment{kind, name}, far); err != nil {
		return fail(err)
	}
	f.applied.fabric, f.applied.internet = netns.State{}, netns.State{}
	if err := f.apply(); err != nil {
		return fail(err)
	}
	return nil
}

// wire creates the veth pair, and configures the far end unless it is already configured.
func wire(w vnet.Wire, near, far *netns.Namespace) error {
	if err := spreadReceive(far); err != nil {
		return err
	}
	if err := netns.EnsureVeth(end(near, w.Inside), end(far, w.Outside), vnet.MTU); err != nil {
		return err
	}
	bare, err := far.Bare(w.Outside.Link)
	if err != nil || !bare {
		return err
	}
	s := w.Far
	s.Protocol = protocolDHCP
	return far.Apply(s)
}

// protocolDHCP marks the routes that Azure's DHCP gives a machine (RTPROT_DHCP, include/uapi/linux/rtnetlink.h).
const protocolDHCP = 16

// DetachNIC takes the NIC's link away. One that is not there is no error. The NIC stays in the network.
func (f *Fabric) DetachNIC(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopAgent(name)
	f.forgetAttached(attachment{kindNIC, name})
	nic, ok := f.network.NIC(name)
	if f.fabric == nil || !ok {
		return nil
	}
	return f.fabric.DeleteLink(nic.Link())
}

// DetachHost takes the host's link away. One that is not there is no error.
func (f *Fabric) DetachHost(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forgetAttached(attachment{kindHost, name})
	if _, ok := f.network.Host(name); f.internet == nil || !ok {
		return nil
	}
	return f.internet.DeleteLink(name)
}

// Update changes the network: change gets a copy, and when it returns nil and the copy is valid, the kernel is brought to the
// new plan. On an error nothing changes.
func (f *Fabric) Update(change func(*vnet.Network) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := f.network.Clone()
	if err := change(&next); err != nil {
		return err
	}
	if err := next.Validate(); err != nil {
		return fmt.Errorf("update network: %w", err)
	}
	before, health := f.network, maps.Clone(f.health)
	f.network = next
	if f.fabric == nil {
		return nil
	}
	stale := f.forgetStale()
	if err := f.apply(); err != nil {
		f.network, f.health = before, health // a probe reports only changes
		f.applied = appliedState{}
		return errors.Join(fmt.Errorf("update network: %w", err), f.apply())
	}
	f.endProbes(stale)
	f.wakeProbes()
	return nil
}

// fault notes how something went that is tried again and again.
func (f *Fabric) fault(what string, err error) {
	f.faultMu.Lock()
	defer f.faultMu.Unlock()
	if err != nil && f.faults[what] == nil {
		f.cfg.Log.Error(what, "err", err)
	}
	f.faults[what] = err
}

// Fault returns what fails at present of what the fabric does by itself: health that does not reach the kernel, spare ports, resets of idle
// flows, the wire server.
func (f *Fabric) Fault() error {
	f.faultMu.Lock()
	defer f.faultMu.Unlock()
	var all []error
	for _, what := range slices.Sorted(maps.Keys(f.faults)) {
		if err := f.faults[what]; err != nil {
			all = append(all, fmt.Errorf("%s: %w", what, err))
		}
	}
	return errors.Join(all...)
}

// Snapshot returns copies of the network and of the back ends' health.
func (f *Fabric) Snapshot() (vnet.Network, vnet.Health) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.network.Clone(), maps.Clone(f.health)
}

// apply brings the kernel to the plan of the network and health, changing only what differs from the last time. Held: mu.
func (f *Fabric) apply() error {
	plan := vnet.NewPlan(f.network, f.health)
	for _, nic := range f.applied.network.NICs {
		if now, ok := f.network.NIC(nic.Name); ok && now.ID == nic.ID {
			continue
		}
		if err := f.fabric.DeleteLink(nic.Link()); err != nil {
			return err
		}
	}
	for _, h := range f.applied.network.Hosts {
		if _, ok := f.network.Host(h.Name); !ok {
			if err := f.internet.DeleteLink(h.Name); err != nil {
				return err
			}
		}
	}
	if err := bring(f.internet, plan.Internet, &f.applied.internet); err != nil {
		return err
	}
	if err := bring(f.fabric, plan.Fabric, &f.applied.fabric); err != nil {
		return err
	}
	if plan.NFT != f.applied.nft {
		if err := ruleset.ApplyNFT(f.life, f.fabric, plan.NFT); err != nil {
			return err
		}
		f.applied.nft = plan.NFT
	}
	ended := vnet.EndedFlows(f.applied.network, f.applied.health, f.network, f.health)
	if _, err := f.fabric.DeleteFlows(ended...); err != nil {
		return err
	}
	f.applied.network, f.applied.health = f.network.Clone(), maps.Clone(f.health)
	return f.save()
}

// bring applies the part of the state that the links there are allow, unless all of it was applied before.
func bring(ns *netns.Namespace, want netns.State, last *netns.State) error {
	if reflect.DeepEqual(want, *last) {
		return nil
	}
	names, err := ns.LinkNames()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, n := range names {
		there[n] = true
	}
	if err := ns.Apply(want.On(func(l string) bool { return there[l] })); err != nil {
		return err
	}
	*last = want
	return nil
}
