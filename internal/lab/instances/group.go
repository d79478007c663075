package instances

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/kubeletclient"
)

// group is one container group and the worker that runs it.
type group struct {
	cfg  *Config
	name string
	dir  string
	disk string
	spec aci.ContainerGroup // as it was put, but for the address; never changed in place

	stop     context.CancelFunc // ends the worker; containers run on
	done     chan struct{}      // closes when the worker and its containers' have ended
	removing sync.Mutex         // held by who removes the group

	mu       sync.Mutex
	removed  bool
	ending   bool // its removal has begun, and is gone on with by the next process
	ip       netip.Addr
	state    string // provisioning state
	failing  string // why the group does not come up; "" while that is not known, or it is up
	events   []aci.Event
	views    []aci.ContainerView // of each container, in their order
	is       *corev1.Pod         // as the kubelet has it; nil before it is known
	space    *netns.Namespace    // the pod's; nil before there is one
	host     *netns.Namespace
	machine  *supervise.Supervisor
	kubelet  *kubeletclient.Client
	proxy    *supervise.Supervisor
	watchers sync.WaitGroup // the worker's
}

// storedGroup is the state file: a group as it was put, and where it stands. It holds the group's secrets.
type storedGroup struct {
	Group  aci.ContainerGroup  `json:"group"`
	IP     netip.Addr          `json:"ip,omitzero"`
	State  string              `json:"state"`
	Events []aci.Event         `json:"events"`
	Views  []aci.ContainerView `json:"views"`
	Ending bool                `json:"ending,omitempty"`
}

const stateFile = "group.json"

func (s *Groups) newGroup(spec aci.ContainerGroup) *group {
	g := &group{cfg: &s.cfg, name: spec.Name, dir: s.dir(spec.Name), disk: s.cfg.State(spec.Name), spec: spec,
		state: aci.ProvisioningPending, done: make(chan struct{})}
	for range spec.Properties.Containers {
		g.views = append(g.views, newView())
	}
	return g
}

// load reads what an earlier process left.
func (s *Groups) load(name string) (*group, error) {
	data, err := os.ReadFile(filepath.Join(s.dir(name), stateFile))
	if err != nil {
		return nil, err
	}
	var st storedGroup
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, err
	}
	if err := st.Group.Check(); err != nil {
		return nil, err
	}
	if st.Group.Name != name || len(st.Views) != len(st.Group.Properties.Containers) {
		return nil, fmt.Errorf("it is of group %q with %d containers", st.Group.Name, len(st.Views))
	}
	g := s.newGroup(st.Group)
	g.ip, g.state, g.events, g.views, g.ending = st.IP, st.State, st.Events, st.Views, st.Ending
	return g, nil
}

// save replaces the state file.
func (g *group) save() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.saveLocked()
}

func (g *group) saveLocked() error {
	if g.removed {
		return nil
	}
	data, err := json.Marshal(storedGroup{Group: g.spec, IP: g.ip, State: g.state, Events: g.events, Views: g.views, Ending: g.ending})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(g.dir, stateFile), data, 0o600)
}

// change changes what is known of the group, and keeps it.
func (g *group) change(f func()) {
	g.mu.Lock()
	f()
	err := g.saveLocked()
	g.mu.Unlock()
	if err != nil {
		g.cfg.Log.Error("save container group's state", "group", g.name, "err", err)
	}
}

func (g *group) address() netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ip
}

func (g *group) failure() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failing
}

// event notes something about the group.
func (g *group) event(kind, name, message string) {
	g.change(func() { g.events = addEvent(g.events, kind, name, message) })
}

// launch starts the worker, which ends when ctx does or the group is removed.
func (g *group) launch(ctx context.Context) {
	ctx, g.stop = context.WithCancel(ctx)
	go func() {
		defer close(g.done)
		g.run(ctx)
		g.watchers.Wait()
	}()
}

// run brings the group up, again and again until that succeeds, and then follows what becomes of its containers.
func (g *group) run(ctx context.Context) {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 10*time.Second) {
		err := g.bring(ctx)
		if err == nil {
			break
		}
		g.cfg.Log.Error("bring container group up", "group", g.name, "err", err)
		g.change(func() {
			g.failing = err.Error()
			g.events = addEvent(g.events, "Warning", "FailedProvisioning", g.failing)
		})
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
	g.change(func() { g.state, g.failing = aci.ProvisioningSucceeded, "" })
	g.watch(ctx)
}

// bring makes what the containers need.
func (g *group) bring(ctx context.Context) error {
	g.change(func() {
		if g.state == aci.ProvisioningPending {
			g.state = aci.ProvisioningCreating
		}
	})
	address, err := g.allocate()
	if err != nil {
		return err
	}
	g.change(func() { g.ip = address })
	if err := g.makeVolumes(); err != nil {
		return err
	}
	if err := g.connect(ctx); err != nil {
		return err
	}
	return g.startMachine(ctx)
}

// remove ends everything that the group is. It can be called again when it has failed.
func (g *group) remove(ctx context.Context, grace time.Duration) error {
	g.removing.Lock()
	defer g.removing.Unlock()
	g.mu.Lock()
	removed := g.removed
	g.mu.Unlock()
	if removed { // by another caller; what has the name now belongs to another group
		return nil
	}
	if g.stop != nil {
		g.stop()
		<-g.done
	}
	g.change(func() { g.ending = true })
	if err := g.stopMachine(ctx, grace); err != nil {
		return err
	}
	if err := errors.Join(g.stopProxy(), g.endProcesses(ctx), g.disconnect(), g.cfg.Machines.Remove(g.name)); err != nil {
		return err
	}
	g.mu.Lock()
	g.removed = true
	g.mu.Unlock()
	return errors.Join(removetree.Remove(g.dir), removetree.Remove(g.disk), supervise.RemoveLog(g.cfg.LogFile(g.name)))
}

// endProcesses kills the processes left in the group's namespaces, which other programs started there.
func (g *group) endProcesses(ctx context.Context) error {
	var opened []*netns.Namespace
	defer func() { netns.CloseAll(opened) }()
	for _, path := range []string{filepath.Join(g.cfg.NetNSDir, g.name), filepath.Join(g.cfg.HostsDir, g.name)} {
		if ns, err := netns.Open(path); err == nil {
			opened = append(opened, ns)
		}
	}
	return netns.KillIn(ctx, opened...)
}
