package webui

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/answer/picture"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
)

// walkLab walks through a lab's capture, as 'packetwalk walk' does.
func walkLab(t *testing.T, source snapshot.Source, from, to string) *Answer {
	t.Helper()
	ends := [2]endpoint.End{}
	for i, text := range []string{from, to} {
		var err error
		if ends[i], err = endpoint.Parse(text); err != nil {
			t.Fatal(err)
		}
		if ends[i].Namespace == "" && ends[i].Kind.Namespaced() {
			ends[i].Namespace = "default"
		}
	}
	read, err := endpoint.Read(endpoint.World{Source: source}, ends[0], ends[1], 0)
	if err != nil {
		t.Fatal(err)
	}
	result, err := walk.Walk(source, read.Request)
	if err != nil {
		t.Fatal(err)
	}
	o := explain.Options{Owners: explain.NewOwners(source.Objects(), nil)}
	a, err := NewAnswer(Question{From: from, To: to}, picture.New(source, picture.Options{}), source, result, o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func openLab(t *testing.T) snapshot.Source {
	t.Helper()
	c, err := capture.Open("../../tools/picture/testdata/default.pwcap.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return capture.NewSource(c.Origin())
}

// TestAnswer: there is a way for each outcome with a stop for each machine that the packet visits, and rules have their neighbours.
func TestAnswer(t *testing.T) {
	a := walkLab(t, openLab(t), "internet", "svc/whereami")
	if len(a.document.Outcomes) != 4 || len(a.Ways) != 4 {
		t.Fatalf("%d outcomes, %d ways", len(a.document.Outcomes), len(a.Ways))
	}
	neighbours := 0
	for i, w := range a.Ways {
		o := &a.document.Outcomes[i]
		if len(w.There.Stops) != len(o.Results) || len(w.Back.Stops) != len(o.Reply) {
			t.Errorf("outcome %d: %d stops for %d machines", i+1, len(w.There.Stops), len(o.Results))
		}
		for j, stop := range w.There.Stops {
			if stop < 0 || stop >= len(w.There.Points) || j > 0 && stop <= w.There.Stops[j-1] {
				t.Errorf("outcome %d: stops %v of %d points", i+1, w.There.Stops, len(w.There.Points))
			}
		}
		for j := range o.Results {
			for _, ob := range o.Results[j].Observations {
				if ob.Rule != nil && len(ob.Rule.Before) > 0 {
					neighbours++
				}
			}
		}
	}
	if neighbours == 0 {
		t.Error("no rule has a neighbour that did not apply")
	}
	for _, c := range a.document.Conclusions {
		if !strings.Contains(a.Text, c.Text) || !strings.Contains(a.document.Headline, c.Text) {
			t.Errorf("text and headline do not have the conclusion %q", c.Text)
		}
	}
}

// TestHTML: a saved walk is one page below its limit, whose policy has the digests of its script and style, and whose data is the answer.
func TestHTML(t *testing.T) {
	a := walkLab(t, openLab(t), "internet", "svc/whereami")
	var b bytes.Buffer
	if err := a.HTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if len(page) > MostHTML {
		t.Errorf("%d bytes, limit %d", len(page), MostHTML)
	}
	parts := regexp.MustCompile(`(?s)<style>(.*?)</style>.*<script type="application/json" id="answer">(.*?)</script>\n<script>(.*?)</script>`).FindStringSubmatch(page)
	if parts == nil {
		t.Fatalf("page without its parts:\n%.1000s", page)
	}
	for _, part := range []string{parts[1], parts[3]} {
		if !strings.Contains(page, "'"+digest([]byte(part))+"'") {
			t.Errorf("the policy does not allow the part that begins with %.40q", part)
		}
	}
	if strings.Contains(parts[3], "</script") {
		t.Error("the script ends its own element")
	}
	var got struct {
		Question Question
		Walk     explain.Document
	}
	if err := json.Unmarshal([]byte(parts[2]), &got); err != nil || got.Walk.Headline != a.document.Headline || len(got.Walk.Outcomes) != 4 {
		t.Errorf("the data is another answer: %v %+v", err, got.Question)
	}
	if strings.Contains(parts[1]+parts[3], "https:") || strings.Contains(strings.ReplaceAll(parts[3], "http://www.w3.org/", ""), "http:") {
		t.Error("the page names an address of the network")
	}
}

// TestHTMLLimit: a walk with many outcomes keeps the limit by leaving out steps of the last ones.
func TestHTMLLimit(t *testing.T) {
	a := walkLab(t, openLab(t), "internet", "svc/whereami")
	for range 5 {
		a.document.Outcomes = append(a.document.Outcomes, a.document.Outcomes...)
	}
	var err error
	if a.Walk, err = json.Marshal(&a.document); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := a.HTML(&b); err != nil {
		t.Fatal(err)
	}
	if b.Len() > MostHTML {
		t.Errorf("%d bytes, limit %d", b.Len(), MostHTML)
	}
	if n := len(a.document.Outcomes); n != 128 || len(a.document.Outcomes[127].Results) == 0 {
		t.Error("writing the page changed the answer")
	}
}

// namesSource gives the hosts and objects of a network hostile names.
type namesSource struct {
	snapshot.Source
	name string
}

func (s namesSource) Objects() snapshot.Objects {
	o := s.Source.Objects()
	o.Pods = append(o.Pods, snapshot.Pod{Namespace: "default", Name: s.name, Node: o.Nodes[0].Name, IPs: []netip.Addr{netip.MustParseAddr("10.13.76.20")},
		Labels: map[string]string{s.name: s.name}})
	o.Services = append(o.Services, snapshot.Service{Namespace: s.name, Name: s.name, External: []netip.Addr{netip.MustParseAddr("203.0.113.99")}})
	return o
}

func (s namesSource) Host(name string) (*snapshot.Host, error) {
	h, err := s.Source.Host(name)
	if err != nil {
		return nil, fs.ErrNotExist
	}
	return h, nil
}

// TestHostileNames: names out of a capture never end an element of a saved page, and are no markup of a drawing.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{"</script><script>alert(1)</script>", "<!--<script>", "]]><svg onload=alert(1)>", "\u2028\u202e\x1b[2J"} {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			a := walkLab(t, namesSource{openLab(t), name}, "internet", "svc/whereami")
			a.Question.From = name
			var page, drawing bytes.Buffer
			if err := a.HTML(&page); err != nil {
				t.Fatal(err)
			}
			if err := a.SVG(&drawing); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(page.String(), "<script"); n != 2 {
				t.Errorf("%d script elements", n)
			}
			for _, text := range []string{page.String(), drawing.String()} {
				if strings.Contains(text, "<svg onload") || strings.Contains(text, "<!--") || strings.Contains(text, "\x1b") || strings.Contains(text, "alert(1)</script>") {
					t.Errorf("the name %q is markup", name)
				}
			}
		})
	}
}
