//go:build linux

package session

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/answer/proof/local"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/apiobjects"
	"packetwalk.dev/internal/kernel/hostns"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/hosts"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/witness"
)

// labBackend is a lab that runs on this machine.
type labBackend struct {
	dir    lab.Dir
	mu     sync.Mutex
	opened map[string]*netns.Namespace // by the host's name
}

// OpenLab opens a running lab by its name; "" is the only one there is. The error is an InputError where there is no such lab.
func OpenLab(ctx context.Context, name string) (*Session, error) {
	dir, err := lab.Select(name)
	if err != nil {
		return nil, &InputError{err}
	}
	hosts, err := lab.Snapshot(ctx, dir)
	starting := lab.CheckStarting(ctx, dir)
	if err != nil {
		return nil, cmp.Or(starting, err)
	}
	s := &Session{
		Lab:     &labFacts{dir: dir, status: sync.OnceValue(func() lab.Status { return lab.StatusOf(ctx, dir) })},
		backend: &labBackend{dir: dir, opened: map[string]*netns.Namespace{}},
		source:  armview.WithDoubts(hosts),
	}
	s.setUnread(cmp.Or(starting, hosts.ObjectsError())) // a lab that starts has objects that are still to come
	return s, nil
}

func (b *labBackend) read(ctx context.Context) (snapshot.Source, error) {
	hosts, err := lab.Snapshot(ctx, b.dir)
	if err != nil {
		return nil, err
	}
	return armview.WithDoubts(hosts), nil
}

func (b *labBackend) place(host string) (proof.Place, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ns := b.opened[host]; ns != nil {
		return local.Place(ns), nil
	}
	at, err := b.dir.FindHost(host)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, fs.ErrNotExist)
	}
	ns, err := netns.Open(at.NetNS)
	if err != nil {
		return nil, err
	}
	b.opened[host] = ns
	return local.Place(ns), nil
}

func (b *labBackend) close(context.Context) error {
	for _, ns := range b.opened {
		_ = ns.Close()
	}
	return nil
}

// labFacts is the Lab of a lab.
type labFacts struct {
	dir    lab.Dir
	status func() lab.Status
}

// PublicAddresses returns nil if the lab's process does not answer.
func (f *labFacts) PublicAddresses() map[string]netip.Addr {
	known := f.status().Hosts
	if len(known) == 0 {
		return nil
	}
	all := map[string]netip.Addr{}
	for _, h := range known {
		if a, err := netip.ParseAddr(h.PublicIP); err == nil {
			all[h.Name] = a
		}
	}
	return all
}

func (f *labFacts) LookUp(ctx context.Context, host, name string) (witness.Lookup, error) {
	return hosts.LookUp(ctx, f.dir, host, name)
}
func (f *labFacts) Frontends() []Frontend { return Frontends(f.status()) }
func (f *labFacts) Problems() []string    { return f.status().Problems }

// Namespaces leaves out namespaces that end meanwhile.
func (f *labFacts) Namespaces() (map[uint64]string, error) {
	paths, err := f.dir.Namespaces()
	if err != nil {
		return nil, err
	}
	hosts := map[uint64]string{}
	for host, path := range paths {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err == nil {
			hosts[st.Ino] = host
		}
	}
	return hosts, nil
}

// Outbound implements Lab.
func (f *labFacts) Outbound() (all []Outbound) {
	for _, o := range f.status().Outbound {
		used := Outbound{Node: o.Node, Ports: o.Ports, InUse: o.InUse, Frontends: map[netip.Addr]int{}}
		for _, f := range o.Frontends {
			used.Frontends[f.Address] += f.Ports
		}
		if o.Fullest != nil {
			used.Fullest, used.Percent = o.Fullest.Protocol+" "+o.Fullest.Destination, o.Fullest.Percent
		}
		all = append(all, used)
	}
	return all
}

// Frontends returns the front ends of a lab's status.
func Frontends(st lab.Status) (all []Frontend) {
	for _, f := range st.Frontends {
		all = append(all, Frontend{Address: f.Address, Port: f.Port, Healthy: len(f.Healthy), Total: f.Total, Probed: f.Probed})
	}
	return all
}

// LabOrigin returns the hosts of a running lab, for a capture. The error is an InputError where there is no such lab.
func LabOrigin(ctx context.Context, name string) (capture.Origin, error) {
	dir, err := lab.Select(name)
	if err != nil {
		return capture.Origin{}, &InputError{err}
	}
	return lab.Origin(ctx, dir)
}

// MachineOrigin returns the network namespaces of this machine, for a capture, with the Kubernetes objects that kubeconfig leads to; "" is
// the service account of the pod that this process is in, if any.
func MachineOrigin(ctx context.Context, kubeconfig string) (capture.Origin, error) {
	origin, _, err := hostns.Look(ctx, "")
	if kubeconfig != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != "" {
		origin.Lists = func() (map[string][]byte, error) { return apiobjects.Fetch(ctx, kubeconfig) }
	}
	return origin, err
}

// loadNFT returns rules in nft's own syntax as JSON.
func loadNFT(text []byte) ([]byte, error) { return ruleset.LoadNFT(context.Background(), text) }
