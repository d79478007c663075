package instances

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/base/tree"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/pods/rootfs"
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
	ip       netip.Addr
	state    string // provisioning state
	failing  string // why the group does not come up; "" while that is not known, or it is up
	events   []aci.Event
	runs     []*run // one for each container, in their order
	space    *kernel.Namespace
	host     *kernel.Namespace
	proxy    *supervise.Supervisor
	watchers sync.WaitGroup
}

// stored is the state file: a group as it was put, and where it stands. It holds the group's secrets.
type stored struct {
	Group  aci.ContainerGroup `json:"group"`
	IP     netip.Addr         `json:"ip,omitzero"`
	State  string             `json:"state"`
	Events []aci.Event        `json:"events"`
	Runs   []runState         `json:"runs"`
}

const stateFile = "group.json"

func (s *Groups) newGroup(spec aci.ContainerGroup) *group {
	g := &group{cfg: &s.cfg, name: spec.Name, dir: s.dir(spec.Name), disk: filepath.Join(s.cfg.Disk, spec.Name), spec: spec,
		state: aci.ProvisioningPending, done: make(chan struct{})}
	g.runs = make([]*run, len(spec.Properties.Containers))
	for i, c := range spec.Properties.Containers {
		g.runs[i] = &run{name: c.Name, runState: runState{Now: aci.ContainerState{State: aci.StateWaiting}}}
	}
	return g
}

// load reads what an earlier process left.
func (s *Groups) load(name string) (*group, error) {
	data, err := os.ReadFile(filepath.Join(s.dir(name), stateFile))
	if err != nil {
		return nil, err
	}
	var st stored
	if err := json.Unmarshal(data, &st); err != nil {
		return nil, err
	}
	if err := st.Group.Check(); err != nil {
		return nil, err
	}
	if st.Group.Name != name || len(st.Runs) != len(st.Group.Properties.Containers) {
		return nil, fmt.Errorf("it is of group %q with %d containers", st.Group.Name, len(st.Runs))
	}
	g := s.newGroup(st.Group)
	g.ip, g.state, g.events = st.IP, st.State, st.Events
	for i := range g.runs {
		g.runs[i].runState = st.Runs[i]
	}
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
	st := stored{Group: g.spec, IP: g.ip, State: g.state, Events: g.events}
	for _, r := range g.runs {
		st.Runs = append(st.Runs, r.runState)
	}
	data, err := json.Marshal(st)
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

// maxEvents is how many events a group, or a container, keeps.
const maxEvents = 50

// addEvent adds an event to a list, or counts one that is there.
func addEvent(list []aci.Event, kind, name, message string) []aci.Event {
	now := time.Now().UTC()
	for i := range list {
		if e := &list[i]; e.Name == name && e.Message == message {
			e.Count, e.LastTimestamp = e.Count+1, now
			return list
		}
	}
	list = append(list, aci.Event{Count: 1, FirstTimestamp: now, LastTimestamp: now, Name: name, Message: message, Type: kind})
	return list[max(0, len(list)-maxEvents):]
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
		g.work(ctx)
		g.watchers.Wait()
	}()
}

// work brings the group up, again and again until that succeeds, and then lets each container run.
func (g *group) work(ctx context.Context) {
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
	for i, r := range g.runs {
		g.watchers.Go(func() { g.keep(ctx, &g.spec.Properties.Containers[i], r) })
	}
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
	return g.startProxy()
}

// remove ends everything that the group is. It can be called again when it has failed.
func (g *group) remove(ctx context.Context, grace time.Duration) error {
	g.removing.Lock()
	defer g.removing.Unlock()
	g.mu.Lock()
	removed := g.removed
	g.mu.Unlock()
	if removed { // by somebody else; what has the name now is another group's
		return nil
	}
	if g.stop != nil {
		g.stop()
		<-g.done
	}
	if err := g.stopContainers(ctx, grace); err != nil {
		return err
	}
	if err := errors.Join(g.stopProxy(), g.endProcesses(ctx), g.disconnect()); err != nil {
		return err
	}
	g.mu.Lock()
	g.removed = true
	g.mu.Unlock()
	return errors.Join(tree.Remove(g.dir), tree.Remove(g.disk), supervise.RemoveLog(g.cfg.LogFile(g.name)))
}

// endProcesses kills what is left in the group's namespaces: what somebody else began there.
func (g *group) endProcesses(ctx context.Context) error {
	var opened []*kernel.Namespace
	defer func() { kernel.CloseAll(opened) }()
	for _, path := range []string{filepath.Join(g.cfg.NetNSDir, g.name), filepath.Join(g.cfg.HostsDir, g.name)} {
		if ns, err := kernel.OpenNamespace(path); err == nil {
			opened = append(opened, ns)
		}
	}
	return kernel.KillIn(ctx, opened...)
}

// view is the group as it is now.
func (g *group) view() aci.ContainerGroup {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.spec
	p := &v.Properties
	p.ProvisioningState = g.state
	if p.IPAddress != nil {
		ip := *p.IPAddress
		ip.IP, ip.Ports = g.ip, slices.Clone(ip.Ports)
		p.IPAddress = &ip
	}
	p.Containers = slices.Clone(p.Containers)
	for i, r := range g.runs {
		p.Containers[i].Properties.InstanceView = r.view()
	}
	p.InstanceView = &aci.GroupView{State: g.stateLocked(), Events: slices.Clone(g.events)}
	return v
}

// stateLocked is the group's state by its containers'. Held: mu.
func (g *group) stateLocked() string {
	if g.state != aci.ProvisioningSucceeded {
		return aci.GroupPending
	}
	state := aci.GroupSucceeded
	for _, r := range g.runs {
		if r.Now.State == aci.StateWaiting && r.Attempt == 0 {
			return aci.GroupPending
		}
		code := 0
		if r.Now.ExitCode != nil {
			code = *r.Now.ExitCode
		}
		switch {
		case r.Now.State != aci.StateTerminated || again(g.spec.Properties.RestartPolicy, code):
			state = aci.GroupRunning
		case code != 0 && state == aci.GroupSucceeded:
			state = aci.GroupFailed
		}
	}
	return state
}

// hostname is what the containers have: Azure's, of which only the form is known.
func (g *group) hostname() string {
	sum := sha256.Sum256([]byte(cmp.Or(g.spec.Tags[aci.TagUID], g.name)))
	return fmt.Sprintf("SandboxHost-%018d", binary.BigEndian.Uint64(sum[:])%1e18)
}

// resolvConf is the containers' /etc/resolv.conf: as the group asks for, or Azure's name server.
func (g *group) resolvConf() []byte {
	d := g.spec.Properties.DNSConfig
	if d == nil || len(d.NameServers) == 0 {
		return []byte("nameserver 168.63.129.16\n")
	}
	var b strings.Builder
	if d.SearchDomains != "" {
		fmt.Fprintf(&b, "search %s\n", d.SearchDomains)
	}
	for _, s := range d.NameServers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if d.Options != "" {
		fmt.Fprintf(&b, "options %s\n", d.Options)
	}
	return []byte(b.String())
}

func (g *group) hostsFile() []byte {
	return []byte(rootfs.Hosts(fmt.Sprintf("%s\t%s", g.address(), g.hostname())))
}
