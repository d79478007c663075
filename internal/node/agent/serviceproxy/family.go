package serviceproxy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/reconcile"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

// family is the service proxy of one family, which waits for no other's.
type family struct {
	*common
	service.Family
	programs *iptablescmd.Programs
	pace     reconcile.Pacer
	ports    *service.Ports
	syncer   syncer
	config   proxy.Config
	other    syncer // of the other backend, whose rules are to be removed; nil: they are
	idle     syncer // of the other backend
	left     bool   // the rules are another service proxy's, which runs
	behind   bool   // the rules are those of another one that has ended, until the next sync succeeds
	udp      bool   // UDP flows may be stale
	failed   int    // syncs in a row
	told     bool   // of these, by an event

	pending   map[service.Key][]time.Time // changed since the last sync that succeeded, with the trigger times of its endpoints' changes
	triggered map[service.Key]time.Time   // last of those that has been observed; nil before the first sync that succeeds
}

// syncer keeps the rules of one family, made by proxy/iptables or proxy/nftables.
type syncer interface {
	ruleWriter
	ruleChecker
}

// ruleWriter writes rules and removes them.
type ruleWriter interface {
	Configure(proxy.Config)
	// Sync writes what differs, of all if it did not succeed the last time, else of services that have changed since.
	Sync(ctx context.Context, ports *service.Ports, changed []service.Key) (proxy.Result, error)
	// ForceFull makes the next Sync write everything that differs.
	ForceFull()
	// Remove removes all rules.
	Remove(context.Context) error
}

// ruleChecker finds and repairs rules that others removed or changed.
type ruleChecker interface {
	// Canary reports whether any of the rules exist.
	Canary(context.Context) (bool, error)
	// Repair restores rules that others changed, and returns the names of what it wrote.
	Repair(context.Context) ([]string, error)
}

// iptablesSyncer writes the rules of all services together.
type iptablesSyncer struct{ *iptables.Syncer }

func (s iptablesSyncer) Sync(ctx context.Context, ports *service.Ports, _ []service.Key) (proxy.Result, error) {
	return s.Syncer.Sync(ctx, ports.All())
}

func newFamily(of *common, c proxy.Config, programs *iptablescmd.Programs) (*family, error) {
	syncer, err := iptables.NewSyncer(c, programs)
	if err != nil {
		return nil, err
	}
	f := &family{common: of, Family: c.Family, programs: programs, ports: service.NewPorts(), config: c,
		syncer: iptablesSyncer{syncer}, other: nftables.NewSyncer(c, of.NFTables)}
	if of.Backend == options.BackendNFTables {
		f.syncer, f.other = f.other, f.syncer
	}
	f.idle = f.other
	return f, nil
}

// mustYield reports whether another service proxy writes the family's rules in place of this one. With iptables that is so as soon as the
// other runs, because both would write the same chains. A table of nftables is one proxy's alone, so ours stays until the other has its
// rules.
func (f *family) mustYield() bool {
	return len(f.Others.Running()) > 0 && (f.left || f.Backend == options.BackendIPTables)
}

// rewrite asks for a sync of all rules.
func (f *family) rewrite() {
	f.syncer.ForceFull()
	f.pace.Request()
}

// dropOthers leaves the services that are not among all there are without ports.
func (f *family) dropOthers(all kube.Delta) {
	for _, key := range f.ports.Services() {
		if _, exists := all.Services[key]; !exists {
			f.put(key, nil, nil)
		}
	}
}

// put takes a service's ports, and the slices that they were made of.
func (f *family) put(key service.Key, ports []service.Port, of []*discoveryv1.EndpointSlice) {
	if f.pending == nil {
		f.pending = map[service.Key][]time.Time{}
	}
	f.pending[key] = nil
	for _, s := range of {
		at, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime])
		if err == nil && at.After(f.triggered[key]) {
			f.pending[key] = append(f.pending[key], at)
		}
	}
	f.udp = f.udp || udpState(ports) != udpState(f.ports.Of(key))
	f.ports.Put(key, ports)
}

// repair puts back rules that others have taken away or changed.
func (f *family) repair(ctx context.Context) {
	names, err := f.syncer.Repair(ctx)
	if err != nil {
		f.pace.Request() // the next sync writes what this repair could not, and until then there is no other repair
	}
	f.Faults.Note(fmt.Sprintf("repair %s rules", f), err)
	if len(names) > 0 {
		f.Metrics.repairs.Of(f.String()).Add(float64(len(names)))
		f.Logger.Warnf("put back %s rules that something else had changed: %s", f, shorten(names))
	}
}

func shorten(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// removeOther removes what the other backend left behind, and kube-proxy with nftables, once there are rules.
func (f *family) removeOther(ctx context.Context) {
	if len(f.Others.Running()) == 0 && f.other != nil && f.remove(ctx, f.other) == nil { // else they are in use
		f.other = nil
	}
}

// remove removes the rules of syncers, and kube-proxy's with nftables.
func (f *family) remove(ctx context.Context, syncers ...syncer) error {
	err := nftables.RemoveKubeProxys(ctx, f.NFTables, f.Family)
	for _, s := range syncers {
		failed := s.Remove(ctx)
		if errors.Is(failed, exec.ErrNotFound) { // whether iptables-legacy has rules is unknown
			failed = withoutIPTables(ctx, f.NFTables, f.Family)
		}
		err = errors.Join(err, failed)
	}
	f.Faults.Note(fmt.Sprintf("remove %s rules that are not in use", f), err)
	return err
}

// withoutIPTables returns an error where a service proxy with iptables-nft left rules, and no programs can remove them.
func withoutIPTables(ctx context.Context, rules *nftables.Rules, f service.Family) error {
	exist, err := nftables.HasIPTables(ctx, rules, f)
	if exist {
		return errors.New("a service proxy with iptables left rules, which go on translating, and iptables is not installed here: install it")
	}
	return err
}

// cleanFlows looks at conntrack when something about UDP services has changed, and until that has succeeded.
func (f *family) cleanFlows() {
	if !f.udp {
		return
	}
	start := time.Now()
	var err error
	if flows := iptables.NewUDPFlows(f.ports.UDP()); !flows.Empty() {
		var n int
		n, err = deleteStaleFlows(f.Family, flows)
		f.Metrics.conntrackDeleted.Of(f.String()).Add(float64(n))
		f.Metrics.conntrack.Of(f.String()).Observe(time.Since(start))
	}
	f.Faults.Note(fmt.Sprintf("delete stale %s UDP flows", f), err)
	f.udp = err != nil
}

// observe measures how long changes of endpoints took to get into the rules, by the time that their controller noted on each slice.
func (f *family) observe() {
	now := time.Now()
	first := f.triggered == nil // changes from before the start say nothing about this proxy
	if first {
		f.triggered = map[service.Key]time.Time{}
	}
	for key, times := range f.pending {
		for _, at := range times {
			if !first {
				f.Metrics.programming.Of(f.String()).Observe(now.Sub(at))
			}
			f.triggered[key] = reconcile.Later(f.triggered[key], at)
		}
	}
	f.pending = nil
}
