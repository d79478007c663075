package fabric

import (
	"context"
	"errors"
	"log/slog"

	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/vnet"
)

// Config is what a Fabric is made of.
type Config struct {
	// Dir holds the lab's namespaces; the fabric makes "fabric" and "internet" in it.
	Dir string
	// Network is what there is at the start. Update changes it later.
	Network vnet.Network
	// Log may be nil.
	Log *slog.Logger
	// Prober tries one back end; nil for real probes from the fabric's namespace. For tests.
	Prober Prober
	// Timing of the probes; the zero value means Azure's. For tests.
	Timing Timing
}

// Fabric is a running fabric. Its methods are safe for concurrent use.
type Fabric struct {
	cfg Config
}

// HealthChange is one back end that went up or down under a probe.
type HealthChange struct {
	Target vnet.ProbeTarget
	Up     bool
	Reason string // why it is down: the last probe's error; "" when up
}

var errTODO = errors.New("not there yet")

// New checks the configuration. It touches nothing.
func New(cfg Config) (*Fabric, error) { return &Fabric{cfg: cfg}, nil }

// Start makes the fabric's namespaces, or takes over those that are there, brings them to the plan and starts probing. The
// probes end with ctx or Close; the namespaces and their traffic stay.
func (f *Fabric) Start(ctx context.Context) error { return errTODO }

// Close ends probing and answering. The namespaces and their traffic stay.
func (f *Fabric) Close() error { return nil }

// Remove closes the fabric and removes its namespaces.
func (f *Fabric) Remove() error { return errTODO }

// Namespace is the fabric's namespace, Internet that of the internet's router. Both are nil before Start.
func (f *Fabric) Namespace() *kernel.Namespace { return nil }

// Internet is the namespace of the internet's router.
func (f *Fabric) Internet() *kernel.Namespace { return nil }

// AttachNIC wires the NIC (by its name in the network) to a machine's namespace: eth0 with the NIC's MAC, its primary address
// with the subnet's prefix length, the default route by the subnet's gateway. A NIC that is already wired to that namespace is
// left as it is, whatever the machine did with it since.
func (f *Fabric) AttachNIC(nic string, machine *kernel.Namespace) error { return errTODO }

// DetachNIC takes the NIC's link away. One that is not there is no error. The NIC stays in the network.
func (f *Fabric) DetachNIC(nic string) error { return errTODO }

// AttachHost wires an internet host (by its name in the network's Hosts) to a namespace: eth0 with its address as a /32 and a
// default route. The control plane is such a host.
func (f *Fabric) AttachHost(host string, ns *kernel.Namespace) error { return errTODO }

// DetachHost takes the host's link away. One that is not there is no error.
func (f *Fabric) DetachHost(host string) error { return errTODO }

// Update changes the network: change gets a copy, and when it returns nil and the copy is valid, the kernel is brought to the
// new plan. On an error nothing changes.
func (f *Fabric) Update(change func(*vnet.Network) error) error { return errTODO }

// Snapshot returns copies of the network and of the back ends' health.
func (f *Fabric) Snapshot() (vnet.Network, vnet.Health) { return f.cfg.Network, nil }

// OnHealthChange calls fn after each change of health has reached the kernel, one call at a time. Register before Start.
func (f *Fabric) OnHealthChange(fn func(HealthChange)) {}
