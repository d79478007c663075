package instances

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/pods/kubeletclient"
)

// Network is what a group needs of Azure's host network.
type Network interface {
	// Update changes the network, all or nothing.
	Update(func(*vnet.Network) error) error
	Snapshot() (vnet.Network, vnet.Health)
	// AttachNIC wires a NIC to a machine's namespace.
	AttachNIC(nic string, machine *netns.Namespace) error
}

// Machines make what groups run on.
type Machines interface {
	// Prepare writes what a group's machine is made of, unless it runs, and gives its first process.
	Prepare(context.Context, Machine) (supervise.Process, error)
	// ServeImages serves images to a machine until ctx ends.
	ServeImages(context.Context, Machine) error
	// Remove takes away what a group's machine, whose processes have ended, leaves beside its directories.
	Remove(group string) error
	// KubeletTLS is by what a machine's kubelet is known, and knows its client.
	KubeletTLS() (*tls.Config, error)
	// HasImage is an error when there is no such image. It may take as long as a pull does.
	HasImage(ctx context.Context, ref string) error
}

// Config is all that the service needs; every field must be set.
type Config struct {
	Dir string // of what is known of the groups
	// State is the directory of what a group's machine writes, on a file system that overlayfs can write to.
	State func(group string) string
	// NetNSDir is where the groups' network namespaces are mounted, HostsDir where those of their hosts are, by the groups' names.
	NetNSDir, HostsDir string
	Network            Network
	Machines           Machines
	NodeAgent          string // the program packetwalk-node, the kube-proxy extension
	LogFile            func(group string) string
	Log                *slog.Logger

	Subscription, ResourceGroup, Location string
}

// Groups is the service: every container group of a lab. It is an aci.Service.
type Groups struct {
	cfg Config
	ctx context.Context

	mu     sync.Mutex
	groups map[string]*group
}

var _ aci.Service = (*Groups)(nil)

// Open takes over the groups that an earlier process left, and keeps them running until ctx ends; containers run on then.
func Open(ctx context.Context, cfg Config) (*Groups, error) {
	s := &Groups{cfg: cfg, ctx: ctx, groups: map[string]*group{}}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		g, err := s.load(e.Name())
		if err != nil {
			cfg.Log.Error("container group's state file is not usable; the group is removed", "group", e.Name(), "err", err)
			g = s.newGroup(aci.ContainerGroup{Name: e.Name()})
			if err := g.remove(ctx, 0); err != nil {
				return nil, fmt.Errorf("remove container group %s: %w", e.Name(), err)
			}
			continue
		}
		if g.ending {
			if err := g.remove(ctx, 0); err != nil {
				return nil, fmt.Errorf("remove container group %s: %w", e.Name(), err)
			}
			continue
		}
		s.groups[g.name] = g
		g.launch(ctx)
	}
	return s, nil
}

// Put implements aci.Service. It waits for images, at most for a moment; the group comes up by itself.
func (s *Groups) Put(ctx context.Context, spec aci.ContainerGroup) (aci.ContainerGroup, error) {
	if err := s.check(ctx, &spec); err != nil {
		return aci.ContainerGroup{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.groups[spec.Name]; old != nil {
		is := old.view()
		if is.Tags[aci.TagUID] == spec.Tags[aci.TagUID] {
			return is, nil
		}
		return is, aci.Conflict("ContainerGroupTransitioning", "The container group '%s' is there already, of another pod; delete it first.",
			spec.Name)
	}
	g := s.newGroup(spec)
	if err := g.save(); err != nil {
		return aci.ContainerGroup{}, err
	}
	s.groups[g.name] = g
	g.launch(s.ctx)
	return g.view(), nil
}

func (s *Groups) find(name string) (*group, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.groups[name]
	if g == nil {
		return nil, aci.NotFound(name)
	}
	return g, nil
}

// Namespaces returns the network namespaces of the groups and of their machines.
func (s *Groups) Namespaces() []*netns.Namespace {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*netns.Namespace
	for _, g := range s.groups {
		g.mu.Lock()
		for _, ns := range []*netns.Namespace{g.space, g.host} {
			if ns != nil {
				all = append(all, ns)
			}
		}
		g.mu.Unlock()
	}
	return all
}

// Get implements aci.Service.
func (s *Groups) Get(_ context.Context, name string) (aci.ContainerGroup, error) {
	g, err := s.find(name)
	if err != nil {
		return aci.ContainerGroup{}, err
	}
	return g.view(), nil
}

// List implements aci.Service: it sorts by name and returns views, too.
func (s *Groups) List(context.Context) ([]aci.ContainerGroup, error) {
	s.mu.Lock()
	all := make([]aci.ContainerGroup, 0, len(s.groups))
	for _, g := range s.groups {
		all = append(all, g.view())
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b aci.ContainerGroup) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

// Delete implements aci.Service.
func (s *Groups) Delete(ctx context.Context, name, uid string, grace time.Duration) error {
	g, err := s.find(name)
	if err != nil {
		return err
	}
	if uid != "" && g.spec.Tags[aci.TagUID] != uid {
		return aci.Conflict("ContainerGroupOfAnotherPod", "The container group '%s' is not of the pod with UID %s.", name, uid)
	}
	// It does not end with the caller: what was begun must not stay half done.
	if err := g.remove(context.WithoutCancel(ctx), grace); err != nil {
		return fmt.Errorf("delete container group %s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.groups[name] == g {
		delete(s.groups, name)
	}
	return nil
}

// Logs implements aci.Service.
func (s *Groups) Logs(ctx context.Context, name, of string, o logs.Options, w io.Writer) error {
	c, err := s.container(name, of)
	if err != nil {
		return err
	}
	err = c.kubelet.Logs(ctx, c.pod, c.name, o, w)
	var status *kubeletclient.StatusError
	if errors.As(err, &status) || errors.Is(err, kubeletclient.ErrStream) {
		return aci.Conflict("ContainerGroupDeploymentNotReady", "The container '%s' in container group '%s' has no such log: %v", c.name, name, err)
	}
	return err
}

// Exec implements aci.Service.
func (s *Groups) Exec(ctx context.Context, name, of string, e aci.Exec) (int, error) {
	c, err := s.container(name, of)
	if err != nil {
		return -1, err
	}
	if !c.runs {
		return -1, aci.Conflict("ContainerNotRunning", "The container '%s' in container group '%s' is not running.", c.name, name)
	}
	return c.kubelet.Exec(ctx, c.pod, c.name, kubeletclient.Exec(e))
}

// A container is one of a group's, as its machine has it.
type container struct {
	name    string
	runs    bool
	kubelet *kubeletclient.Client
	pod     *corev1.Pod
}

// container finds a group's container; "" means the first.
func (s *Groups) container(group, name string) (container, error) {
	g, err := s.find(group)
	if err != nil {
		return container{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, c := range g.spec.Properties.Containers {
		if c.Name != name && name != "" {
			continue
		}
		if g.is == nil {
			return container{}, aci.Conflict("ContainerGroupDeploymentNotReady", "The container group '%s' does not exist yet.", group)
		}
		return container{name: c.Name, runs: g.views[i].CurrentState.State == aci.StateRunning, kubelet: g.kubelet, pod: g.is}, nil
	}
	return container{}, &aci.Error{Status: http.StatusNotFound, Code: "ContainerNotFound",
		Message: fmt.Sprintf("Container '%s' not found in container group '%s'.", name, group)}
}

// A Status is how a group is, for people.
type Status struct {
	Name, Address string
	State         string
	Error         string // why it does not come up; "" when nothing is wrong
	Ready         int    // containers that are
	Containers    int
	Proxy         int // process id of the kube-proxy extension; 0 when it does not run, -1 when there is none
}

// Status tells about every group, by name.
func (s *Groups) Status() []Status {
	all, _ := s.List(context.Background())
	var list []Status
	for _, v := range all {
		st := Status{Name: v.Name, State: v.Properties.ProvisioningState, Containers: len(v.Properties.Containers), Proxy: -1}
		if ip := v.Properties.IPAddress; ip != nil && ip.IP.IsValid() {
			st.Address = ip.IP.String()
		}
		if v.Properties.InstanceView != nil {
			st.State = v.Properties.InstanceView.State
		}
		for _, c := range v.Properties.Containers {
			if i := c.Properties.InstanceView; i != nil && i.Ready {
				st.Ready++
			}
		}
		if g, err := s.find(v.Name); err == nil {
			st.Proxy, st.Error = g.proxyPid(), g.failure()
		}
		list = append(list, st)
	}
	return list
}

func (s *Groups) dir(name string) string { return filepath.Join(s.cfg.Dir, name) }
