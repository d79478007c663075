package foreign

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

	"packetwalk.dev/internal/answer/ends"
	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/apiobjects"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/test/world"
)

// fewest is how many pairs a cluster is to be compared for.
const fewest = 200

// volatile are the parts of a host's state that packets and time change; the others are those of the first look.
var volatile = []snapshot.Part{snapshot.Neighbours, snapshot.FDB, snapshot.Flows}

// view is what walks go through: the hosts that a cluster can show of itself, or with all the lab's others too.
type view struct {
	ctx    context.Context
	dumper dump.Dumper
	spaces map[string]*kernel.Namespace
	lists  map[string][]byte // of Kubernetes objects

	mu    sync.Mutex
	dumps map[string]*capture.Raw
}

// look opens the hosts of a lab.
func look(t *testing.T, w *world.World) *view {
	t.Helper()
	d, err := lab.Select(w.Name)
	if err != nil {
		t.Fatal(err)
	}
	o, err := lab.Origin(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	v := &view{ctx: t.Context(), spaces: map[string]*kernel.Namespace{}, dumps: map[string]*capture.Raw{}}
	v.dumper.Hosts = map[string]string{}
	for name := range o.Hosts {
		place, err := d.FindHost(name)
		if err != nil {
			t.Fatal(err)
		}
		ns, err := kernel.OpenNamespace(place.NetNS)
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
	if v.lists, err = apiobjects.Fetch(t.Context(), d.Kubeconfig()); err != nil {
		t.Fatal(err)
	}
	return v
}

// inCluster tells of hosts that a cluster can show of itself.
func inCluster(name string) bool {
	return strings.HasPrefix(name, "node/") || strings.HasPrefix(name, "pod/")
}

// source is the state as it is now, of all hosts or of those in the cluster.
func (v *view) source(all bool) *capture.Lazy {
	o := capture.Origin{Hosts: map[string]capture.NetNS{}, Fetch: v.fetch, Lists: func() (map[string][]byte, error) { return v.lists, nil }}
	for name, ns := range v.spaces {
		if all || inCluster(name) {
			o.Hosts[name] = capture.NetNS{Inode: ns.Inode()}
		}
	}
	return capture.NewSource(o)
}

func (v *view) fetch(name string) (*capture.Raw, error) {
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

// places are the namespaces that a view has.
func (v *view) places(all bool) proof.Places {
	return func(host string) (proof.Place, error) {
		ns := v.spaces[host]
		if ns == nil || !all && !inCluster(host) {
			return nil, fmt.Errorf("host %s: %w", host, fs.ErrNotExist)
		}
		return proof.Local(ns), nil
	}
}

// account is what came of a cluster's pairs.
type account struct {
	pairs, steps, agreed int
	took, longest        time.Duration
	slowest              pair
	wrong                []string
}

func (a *account) String() string {
	return fmt.Sprintf("%d pairs, %d steps compared, %d agree; %.2f s a walk, the longest %.2f s (%s); %d pairs disagree", a.pairs, a.steps, a.agreed,
		a.took.Seconds()/float64(max(a.pairs, 1)), a.longest.Seconds(), a.slowest, len(a.wrong))
}

// compare walks all pairs and lays each beside the kernel.
func compare(t *testing.T, w *world.World) {
	v := look(t, w)
	objects := v.source(false).Objects()
	settle(t, v)
	a, all := &account{}, pairs(t, w, &objects)
	for _, p := range all {
		if why := v.walk(t.Context(), p, a); why != "" {
			a.wrong = append(a.wrong, p.String())
			t.Errorf("%s\n%s", p, why)
		}
	}
	t.Log(a)
	if a.pairs < fewest {
		t.Errorf("only %d pairs", a.pairs)
	}
	command(t, w, all)
}

// settle waits until nobody changes rules any more.
func settle(t *testing.T, v *view) {
	t.Helper()
	before := map[string]*snapshot.Host{}
	world.Eventually(t, time.Minute, func() error {
		v.dumps = map[string]*capture.Raw{}
		source := v.source(false)
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

// tries is how often a pair is walked while the nodes' rules do not stay the same.
const tries = 2

// walk compares one pair and says what is wrong, "" for nothing. Who is outside sends from a host that only the lab can show.
func (v *view) walk(ctx context.Context, p pair, a *account) (why string) {
	begin := time.Now()
	for range tries {
		source := v.source(p.from == "internet")
		report, err := v.once(ctx, source, p)
		if err != nil {
			return err.Error()
		}
		if why = wrong(report); why == "" {
			took := time.Since(begin)
			a.pairs, a.steps, a.agreed = a.pairs+1, a.steps+report.Steps, a.agreed+report.Agreed
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
	}
	a.pairs++
	return why
}

// renew reads anew the hosts that were read, and names those whose rules are not what a source had any more.
func (v *view) renew(source *capture.Lazy) (changed []string, err error) {
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

func (v *view) once(ctx context.Context, source *capture.Lazy, p pair) (*proof.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	from, err1 := ends.Parse(p.from)
	to, err2 := ends.Parse(p.to)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	protocol := map[string]packet.Protocol{"tcp": packet.TCP, "udp": packet.UDP, "icmp": packet.ICMP}[p.proto]
	read, err := ends.Read(ends.World{Source: source}, from, to, protocol)
	if err != nil {
		return nil, err
	}
	_, report, err := proof.Live(ctx, source, v.places(p.from == "internet"), read.Request, false)
	return &report, err
}

// wrong says what keeps a walk from agreeing with the kernel in full. Of a packet that leaves the cluster nobody there knows whether
// anything answers.
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
