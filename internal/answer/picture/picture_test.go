package picture

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/goldentest"
)

// TestLab: the picture of a lab's capture, box by box and wire by wire.
func TestLab(t *testing.T) {
	c, err := capture.Open("../../../tools/picture/testdata/default.pwcap.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := New(capture.NewSource(c.Origin()), Options{})
	check(t, p)
	var b strings.Builder
	b.WriteString(describe(p))
	way := p.Way([]string{"internet/client", "internet", "fabric", "node/aks-nodepool1-31351229-0", "fabric", "node/aks-nodepool1-31351229-1", "pod/default/whereami-774d66bdb4-rkm2p"})
	fmt.Fprintf(&b, "way over two nodes %v stops %v\n", way.Points, way.Stops)
	var svg strings.Builder
	if err := p.SVG(&svg, way, Caption{Title: "a <title> & more", Answer: "the answer", Notes: []string{"node/n: DNAT 10.13.76.2"}}); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n" + svg.String())
	goldentest.File(t, "testdata/lab.txt", b.String())
}

// describe writes a picture as lines, indented as boxes are nested.
func describe(p *Picture) string {
	var b strings.Builder
	depth := map[string]int{}
	for i := range p.Boxes {
		box := &p.Boxes[i]
		if box.Parent != "" {
			depth[box.ID] = depth[box.Parent] + 1
		}
		fmt.Fprintf(&b, "%s%s %s [%s | %s] at %d,%d size %dx%d\n", strings.Repeat("  ", depth[box.ID]), box.Kind, box.ID, box.Label, box.Detail, box.X, box.Y, box.W, box.H)
	}
	for _, w := range p.Wires {
		fmt.Fprintf(&b, "wire %s to %s %v\n", w.From, w.To, w.Points)
	}
	return b.String()
}

// TestRandomWorlds: in each picture no box overlaps another or stands out of the box that holds it, wires are orthogonal and end at their
// boxes, and the same snapshot gives the same bytes.
func TestRandomWorlds(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(rand.New(rand.NewPCG(seed, 1)))
			p := New(w, Options{})
			check(t, p)
			if a, b := encode(t, p), encode(t, New(w, Options{})); a != b {
				t.Error("the same snapshot gives two pictures")
			}
			for i := range p.Boxes {
				if box := &p.Boxes[i]; box.Kind == Group {
					open := New(w, Options{Open: []string{box.ID}})
					check(t, open)
					for _, m := range box.Members {
						if b := open.box(m); b == nil || b.ID != m {
							t.Errorf("pod %s of an open group has no box", m)
						}
					}
				}
			}
		})
	}
}

// TestStaysInPlace: after pods went, those that stay are where they were. New ones take the free places first.
func TestStaysInPlace(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 2))
		w := newWorld(r)
		before := New(w, Options{})
		gone := r.IntN(4)
		for range min(gone, len(w.objects.Pods)) {
			i := r.IntN(len(w.objects.Pods))
			w.objects.Pods = slices.Delete(w.objects.Pods, i, i+1)
		}
		after := New(w, Options{Previous: before})
		check(t, after)
		for i := range after.Boxes {
			if a := &after.Boxes[i]; a.Kind == Pod {
				if b := before.box(a.ID); b != nil && b.ID == a.ID && (a.X != b.X || a.Y != b.Y) {
					t.Fatalf("seed %d: %s moved from %d,%d to %d,%d", seed, a.ID, b.X, b.Y, a.X, a.Y)
				}
			}
		}
	}
}

// TestNewPodTakesFreePlace: a pod that comes in place of another one moves no box.
func TestNewPodTakesFreePlace(t *testing.T) {
	w := &world{hosts: map[string]*snapshot.Host{}}
	w.objects.Nodes = []snapshot.Node{{Name: "n", IPs: []netip.Addr{netip.MustParseAddr("10.0.0.4")}}}
	for i := range 4 {
		w.addPod("n", "default", fmt.Sprintf("web-%d", i))
	}
	first := New(w, Options{})
	w.objects.Pods = slices.Delete(w.objects.Pods, 1, 2)
	second := New(w, Options{Previous: first})
	w.addPod("n", "default", "new")
	third := New(w, Options{Previous: second})
	check(t, third)
	old, box := first.box("pod/default/web-1"), third.box("pod/default/new")
	if box == nil || box.X != old.X || box.Y != old.Y {
		t.Errorf("the new pod is at %+v, not where web-1 was, %+v", box, old)
	}
	if third.box("pod/default/web-3").Y != first.box("pod/default/web-3").Y {
		t.Error("web-3 moved")
	}
}

// TestLarge: 20 nodes with 600 pods are drawn with groups that say how many they hold.
func TestLarge(t *testing.T) {
	w := &world{hosts: map[string]*snapshot.Host{}}
	for n := range 20 {
		name := fmt.Sprintf("node-%d", n)
		w.objects.Nodes = append(w.objects.Nodes, snapshot.Node{Name: name, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(4 + n)})}})
		for i := range 30 {
			w.addPod(name, "shop", fmt.Sprintf("app%d-%d-%d", i%3, n, i))
			w.objects.Pods[len(w.objects.Pods)-1].Controller = &snapshot.Controller{Kind: "ReplicaSet.apps", Name: fmt.Sprintf("app%d", i%3)}
		}
	}
	p := New(w, Options{})
	check(t, p)
	pods, groups := 0, 0
	for i := range p.Boxes {
		if p.Boxes[i].Kind == Group {
			groups++
			pods += len(p.Boxes[i].Members)
			if want := "10 pods"; p.Boxes[i].Detail != want {
				t.Errorf("group says %q, want %q", p.Boxes[i].Detail, want)
			}
		}
	}
	if groups != 60 || pods != 600 {
		t.Errorf("%d groups with %d pods, want 60 with 600", groups, pods)
	}
}

// TestHostileNames: names with markup and control characters are text in a drawing.
func TestHostileNames(t *testing.T) {
	w := &world{hosts: map[string]*snapshot.Host{}}
	const name = "<script>alert(1)</script>\x1b[31m\"'&\x00"
	w.objects.Nodes = []snapshot.Node{{Name: name}}
	w.addPod(name, "default", name)
	w.objects.Pods[0].Labels = map[string]string{name: name}
	p := New(w, Options{})
	var b strings.Builder
	if err := p.SVG(&b, Way{}, Caption{Title: name, Answer: name}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "<script") || strings.ContainsAny(b.String(), "\x1b\x00") {
		t.Errorf("markup or a control character in the drawing:\n%s", b.String())
	}
}

func encode(t *testing.T, p *Picture) string {
	t.Helper()
	data, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// check compares a picture with the rules that all of them follow.
func check(t *testing.T, p *Picture) {
	t.Helper()
	boxes := map[string]*Box{}
	for i := range p.Boxes {
		b := &p.Boxes[i]
		if boxes[b.ID] != nil {
			t.Errorf("two boxes %s", b.ID)
		}
		if boxes[b.ID] = b; b.X < 0 || b.Y < 0 || b.X+b.W > p.Width || b.Y+b.H > p.Height {
			t.Errorf("%s is outside of the picture", b.ID)
		}
		if b.Parent == "" {
			continue
		}
		parent := boxes[b.Parent]
		if parent == nil {
			t.Errorf("%s comes before the box that holds it, %s", b.ID, b.Parent)
		} else if b.X <= parent.X || b.Y <= parent.Y || b.X+b.W >= parent.X+parent.W || b.Y+b.H >= parent.Y+parent.H {
			t.Errorf("%s stands out of %s", b.ID, b.Parent)
		}
	}
	for i := range p.Boxes {
		for j := range i {
			a, b := &p.Boxes[i], &p.Boxes[j]
			if a.Parent == b.Parent && a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				t.Errorf("%s overlaps %s", a.ID, b.ID)
			}
		}
	}
	for _, w := range p.Wires {
		for i, at := range w.Points {
			if at[0] < 0 || at[1] < 0 || at[0] > p.Width || at[1] > p.Height {
				t.Errorf("wire %s to %s leaves the picture at %v", w.From, w.To, at)
			}
			if i > 0 && at[0] != w.Points[i-1][0] && at[1] != w.Points[i-1][1] {
				t.Errorf("wire %s to %s is oblique from %v to %v", w.From, w.To, w.Points[i-1], at)
			}
		}
		if from, to := boxes[w.From], boxes[w.To]; from == nil || to == nil {
			t.Errorf("wire %s to %s has an end without a box", w.From, w.To)
		} else if !onEdge(from, w.Points[0]) || !onEdge(to, w.Points[len(w.Points)-1]) {
			t.Errorf("wire %s to %s does not end at its boxes: %v", w.From, w.To, w.Points)
		}
		for i := range p.Boxes { // a wire crosses only boxes that hold one of its ends
			b := &p.Boxes[i]
			if holds(boxes, b.ID, w.From) || holds(boxes, b.ID, w.To) {
				continue
			}
			for j := 1; j < len(w.Points); j++ {
				if crosses(b, w.Points[j-1], w.Points[j]) {
					t.Errorf("wire %s to %s crosses %s between %v and %v", w.From, w.To, b.ID, w.Points[j-1], w.Points[j])
				}
			}
		}
	}
}

// holds reports whether a box is another one, or holds it.
func holds(boxes map[string]*Box, outer, inner string) bool {
	for inner != "" {
		if outer == inner {
			return true
		}
		inner = boxes[inner].Parent
	}
	return false
}

// crosses reports whether a line between two points goes through the inside of a box.
func crosses(b *Box, p, q Point) bool {
	return max(p[0], q[0]) > b.X && min(p[0], q[0]) < b.X+b.W && max(p[1], q[1]) > b.Y && min(p[1], q[1]) < b.Y+b.H
}

// world is a random network.
type world struct {
	hosts   map[string]*snapshot.Host
	objects snapshot.Objects
}

func (w *world) Host(name string) (*snapshot.Host, error) {
	if h := w.hosts[name]; h != nil {
		return h, nil
	}
	return nil, fs.ErrNotExist
}

func (w *world) Names() []string {
	var names []string
	for name := range w.hosts {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *world) Objects() snapshot.Objects { return w.objects }

func (w *world) addHost(name string, prefix netip.Prefix) {
	w.hosts[name] = &snapshot.Host{
		Name: name, FIB: &fib.State{Addresses: []fib.Address{{Link: "eth0", Prefix: prefix, Scope: "global"}}},
		Peers: []snapshot.Peer{{Link: "eth0", Host: fabricHost}},
	}
}

func (w *world) addPod(node, namespace, name string) {
	n := len(w.objects.Pods)
	w.objects.Pods = append(w.objects.Pods, snapshot.Pod{
		Namespace: namespace, Name: name, Node: node, IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(n / 250), byte(n % 250)})},
	})
}

func newWorld(r *rand.Rand) *world {
	w := &world{hosts: map[string]*snapshot.Host{}}
	if r.IntN(4) > 0 {
		w.addHost(fabricHost, netip.MustParsePrefix("168.63.129.16/32"))
	}
	if r.IntN(4) > 0 {
		w.addHost(internetHost, netip.MustParsePrefix("198.51.100.1/24"))
		for i := range r.IntN(6) {
			w.addHost(fmt.Sprintf("internet/host-%d", i), netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(10 + i)}), 24))
		}
	}
	namespaces := []string{"default", "kube-system", "shop", "team-a"}
	for i := range r.IntN(14) {
		name := fmt.Sprintf("aks-pool%d-%d", i%3, i)
		address := netip.AddrFrom4([4]byte{10, 13, byte(r.IntN(3)), byte(4 + i)})
		w.objects.Nodes = append(w.objects.Nodes, snapshot.Node{Name: name, IPs: []netip.Addr{address}})
		if r.IntN(5) > 0 {
			w.addHost("node/"+name, netip.PrefixFrom(address, 24))
		}
		for p := range r.IntN(18) {
			w.addPod(name, namespaces[r.IntN(len(namespaces))], fmt.Sprintf("%s-%d-%d", strings.Repeat("web", 1+r.IntN(9)), i, p))
			if r.IntN(2) == 0 {
				w.objects.Pods[len(w.objects.Pods)-1].Controller = &snapshot.Controller{Kind: "ReplicaSet.apps", Name: fmt.Sprint("rs-", r.IntN(3))}
			}
		}
	}
	for i := range r.IntN(9) {
		w.addHost(fmt.Sprintf("vm/vm-%d", i), netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 20, byte(r.IntN(3)), byte(4 + i)}), 24))
	}
	for i := range r.IntN(12) {
		w.objects.Services = append(w.objects.Services, snapshot.Service{
			Namespace: "default", Name: fmt.Sprint("svc-", i), External: []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})},
			Ports: []snapshot.ServicePort{{Protocol: packet.TCP, Port: 80}},
		})
	}
	return w
}
