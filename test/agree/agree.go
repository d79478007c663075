// Package agree lays many walks through a lab beside the kernel in one process. It reads each host once, and for every further walk only
// what packets and time change.
package agree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/answer/proof/local"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/apiobjects"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/test/world"
)

// volatile are the parts of a host's state that packets and time change; the others are those of the first look.
var volatile = []snapshot.Part{snapshot.Neighbours, snapshot.FDB, snapshot.Flows, snapshot.RecentLists}

// Pair is a walk: two ends as people name them, and a protocol: tcp, udp or icmp.
type Pair struct{ From, To, Proto string }

func (p Pair) String() string { return p.From + " > " + p.To + " " + p.Proto }

// View holds the hosts that walks go through: all of a lab, or the nodes and pods that a cluster shows. A packet from the internet goes
// through all hosts.
type View struct {
	ClusterOnly bool

	ctx        context.Context
	dumper     dump.Dumper
	spaces     map[string]*netns.Namespace
	lists      map[string][]byte // of Kubernetes objects
	kubeconfig string

	mu    sync.Mutex
	dumps map[string]*capture.Raw
}

// Look opens the hosts of a lab.
func Look(t *testing.T, w *world.World) *View {
	t.Helper()
	d, err := lab.Select(w.Name)
	if err != nil {
		t.Fatal(err)
	}
	o, err := lab.Origin(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	v := &View{ctx: t.Context(), spaces: map[string]*netns.Namespace{}, dumps: map[string]*capture.Raw{}}
	v.dumper.Hosts, v.dumper.Spare = map[string]string{}, d.Tools()
	for name := range o.Hosts {
		place, err := d.FindHost(name)
		if err != nil {
			t.Fatal(err)
		}
		ns, err := netns.Open(place.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		v.spaces[name], v.dumper.Hosts[name] = ns, place.NetNS
	}
	t.Cleanup(func() {
		for _, ns := range v.spaces {
			_ = ns.Close()
		}
	})
	v.kubeconfig = d.Kubeconfig()
	v.Renew(t)
	return v
}

// Renew forgets what was read, and reads the API's objects anew.
func (v *View) Renew(t *testing.T) {
	t.Helper()
	lists, err := apiobjects.Fetch(v.ctx, v.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	v.lists, v.dumps = lists, map[string]*capture.Raw{}
}

// Objects returns the API's objects.
func (v *View) Objects() snapshot.Objects { return v.source(true).Objects() }

// inCluster tells of hosts that a cluster can show of itself.
func inCluster(name string) bool {
	return strings.HasPrefix(name, "node/") || strings.HasPrefix(name, "pod/")
}

// source returns the present state of all hosts or of those in the cluster.
func (v *View) source(all bool) *capture.Lazy {
	o := capture.Origin{Hosts: map[string]capture.NetNS{}, Fetch: v.fetch, Lists: func() (map[string][]byte, error) { return v.lists, nil }}
	for name, ns := range v.spaces {
		if all || inCluster(name) {
			o.Hosts[name] = capture.NetNS{Inode: ns.Inode()}
		}
	}
	return capture.NewSource(o)
}

func (v *View) fetch(name string) (*capture.Raw, error) {
	v.mu.Lock()
	before := v.dumps[name]
	v.mu.Unlock()
	var parts []snapshot.Part
	if before != nil {
		parts = volatile
	}
	raw, err := v.dumper.Parts(v.ctx, name, v.spaces[name], parts...)
	if err != nil {
		return nil, err
	}
	if before != nil {
		outputs := maps.Clone(before.Outputs)
		maps.Copy(outputs, raw.Outputs)
		raw.Outputs = outputs
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.dumps[name] = raw
	return raw, nil
}

// places returns the namespaces that a view has.
func (v *View) places(all bool) proof.Places {
	return func(host string) (proof.Place, error) {
		ns := v.spaces[host]
		if ns == nil || !all && !inCluster(host) {
			return nil, fmt.Errorf("host %s: %w", host, fs.ErrNotExist)
		}
		return local.Place(ns), nil
	}
}

// Account counts the results of pairs.
type Account struct {
	Pairs, Steps, Agreed int
	Repeated             int            // walks that disagreed while rules changed, and were done again
	Wrong                []string       // the pairs that disagree
	Ends                 map[string]int // how many walks ended so: the kind of end, and whose rule dropped the packet

	took, longest time.Duration
	slowest       Pair
}

func (a *Account) String() string {
	return fmt.Sprintf("%d pairs, %d steps compared, %d agree; %.2f s a walk, the longest %.2f s (%s); "+
		"%d walks repeated because rules changed; %d pairs disagree", a.Pairs, a.Steps, a.Agreed, a.took.Seconds()/float64(max(a.Pairs, 1)),
		a.longest.Seconds(), a.slowest, a.Repeated, len(a.Wrong))
}

// Settle waits until the nodes' rules stop changing.
func (v *View) Settle(t *testing.T) {
	t.Helper()
	before := map[string]*snapshot.Host{}
	eventually.Succeeds(t, time.Minute, func() error {
		v.dumps = map[string]*capture.Raw{}
		source := v.source(!v.ClusterOnly)
		var changed []string
		for _, name := range source.Names() {
			if !strings.HasPrefix(name, "node/") {
				continue
			}
			h, err := source.Host(name)
			if err != nil {
				return err
			}
			if b := before[name]; b == nil || len(snapshot.Changes(b, h)) > 0 {
				changed = append(changed, name)
			}
			before[name] = h
		}
		if len(changed) > 0 {
			time.Sleep(2 * time.Second)
			return fmt.Errorf("rules change on %v", changed)
		}
		return nil
	})
	v.dumps = map[string]*capture.Raw{}
}

// tries is how often a pair is walked while the nodes' rules do not stay the same. A busy machine's agents take their time.
const tries = 20

func (v *View) sees(p Pair) bool { return !v.ClusterOnly || p.From == "internet" }

// Walk compares one pair and says what is wrong, "" for nothing. Who is outside sends from a host that only the lab can show.
func (v *View) Walk(ctx context.Context, p Pair, a *Account) (why string) {
	begin := time.Now()
	for range tries {
		source := v.source(v.sees(p))
		report, err := v.once(ctx, source, p)
		if err != nil {
			why = err.Error()
			break
		}
		if why = wrong(report); why == "" {
			a.note(report.Way)
			took := time.Since(begin)
			a.Pairs, a.Steps, a.Agreed = a.Pairs+1, a.Steps+report.Steps, a.Agreed+report.Agreed
			if a.took += took; took > a.longest {
				a.longest, a.slowest = took, p
			}
			return ""
		}
		changed, err := v.renew(source)
		if err != nil {
			why += "\nhave rules changed? " + err.Error()
		}
		if len(changed) == 0 {
			break
		}
		why += fmt.Sprintf("\nrules changed meanwhile on %v", changed)
		a.Repeated++
	}
	a.Pairs++
	a.Wrong = append(a.Wrong, p.String())
	return why
}

// note counts how a walk ended.
func (a *Account) note(o *walk.Outcome) {
	if o == nil {
		return
	}
	end := string(o.End.Kind)
	if o.End.Kind == walk.Dropped {
		for _, s := range slices.Backward(o.There) {
			if s.Visit != nil {
				name := strings.Split(s.Visit.Chain.Name, "-")
				end += " in " + strings.Join(name[:min(2, len(name))], "-") // without the pod's or policy's name
				break
			}
		}
	}
	if a.Ends == nil {
		a.Ends = map[string]int{}
	}
	a.Ends[end]++
}

// renew reads anew the hosts that were read, and names those whose rules are not what a source had any more.
func (v *View) renew(source *capture.Lazy) (changed []string, err error) {
	before := map[string]*snapshot.Host{}
	for _, name := range source.Names() {
		if v.dumps[name] == nil {
			continue
		}
		if before[name], err = source.Host(name); err != nil {
			return nil, err
		}
	}
	v.dumps = map[string]*capture.Raw{}
	now := v.source(true)
	for _, name := range slices.Sorted(maps.Keys(before)) {
		h, err := now.Host(name)
		if err != nil {
			return nil, err
		}
		if len(snapshot.Changes(before[name], h)) > 0 {
			changed = append(changed, name)
		}
	}
	return changed, nil
}

func (v *View) once(ctx context.Context, source *capture.Lazy, p Pair) (*proof.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	from, err1 := endpoint.Parse(p.From)
	to, err2 := endpoint.Parse(p.To)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	protocol := map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP, "icmp": packet.ICMP}[p.Proto]
	read, err := endpoint.Read(endpoint.World{Source: source}, from, to, protocol)
	if err != nil {
		return nil, err
	}
	_, report, err := proof.Once(ctx, source, v.places(v.sees(p)), read.Request, false)
	return &report, err
}

// wrong says what keeps a walk from agreeing with the kernel in full. It accepts a missing answer to a packet that leaves the cluster,
// because no host of the cluster knows whether anything answers.
func wrong(r *proof.Report) string {
	compared := *r
	if r.Way != nil && r.Way.End.Kind == walk.Left {
		compared.Unanswered = false
	}
	if compared.Complete() && r.Steps > 0 && r.Steps == r.Agreed {
		return ""
	}
	text := r.String()
	if r.Way != nil {
		text += fmt.Sprintf("\nthe outcome: %s on %s: %s", r.Way.End.Kind, r.Way.End.Host, r.Way.End.Why)
		for _, s := range slices.Concat(r.Way.There, r.Way.Back) {
			text += fmt.Sprintf("\n  %s %s %s %s", s.Host, s.Stage, s.Packet.Tuple, stepText(&s))
		}
	}
	return text
}

func stepText(s *walk.Step) string {
	if s.Visit != nil && s.Visit.Rule != nil {
		return s.Visit.Chain.Ref(s.Visit.Rule) + ": " + s.Visit.Rule.Text
	}
	if s.Visit != nil {
		return s.Visit.Chain.Ref(nil)
	}
	return s.Why
}
