package usercluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"

	"packetwalk.dev/internal/model/snapshot"
)

// TestSource: nodes are read as far as Options.Most allows; those whose pods do not run are not counted. What is not read is said with the
// reason.
func TestSource(t *testing.T) {
	const hung = "its pod does not run after 20ms"
	for name, test := range map[string]struct {
		most, running int // nodes that run before
		want          map[string]string
	}{
		"no bound":            {0, 1, map[string]string{"node/a": hung, "node/b": hung, "pod/x/b": "node b: " + hung}},
		"failures are free":   {2, 1, map[string]string{"node/a": hung, "node/b": hung}},
		"the bound":           {1, 1, map[string]string{"node/a": "--max-nodes 1 is reached", "pod/x/b": "node b: --max-nodes 1 is reached"}},
		"one that is not on":  {1, 1, map[string]string{"node/off": "it runs Windows", "pod/x/off": "node off: it runs Windows"}},
		"of no node, missing": {0, 0, map[string]string{"pod/x/none": ""}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Cluster{client: fake.NewClientset(), run: "a", nodes: map[string]*node{}, unread: map[string]string{"off": "it runs Windows"}}
			c.options = Options{Most: test.most, Start: 20 * time.Millisecond}
			for i := range test.running {
				c.nodes[strings.Repeat("r", i+1)] = &node{tried: true}
			}
			v := &View{cluster: c, ctx: t.Context(), on: map[string]string{"node/a": "a", "node/b": "b", "pod/x/b": "b"},
				off: map[string]string{"node/off": "off", "pod/x/off": "off"}}
			s := v.Source()
			var unread *snapshot.UnreadError
			if _, err := s.Host("node/a"); !errors.As(err, &unread) || !errors.Is(err, errNotStarted) {
				t.Errorf("before: %v", err)
			}
			hosts := []string{"node/a", "pod/x/b", "node/off", "pod/x/none"}
			if !s.Read(t.Context(), hosts) || s.Read(t.Context(), hosts) {
				t.Error("nothing was tried, or it was tried again")
			}
			for host, why := range test.want {
				_, err := s.Host(host)
				if got := errors.As(err, &unread); got != (why != "") || got && (unread.Host != host || !strings.HasPrefix(unread.Err.Error(), why)) {
					t.Errorf("%s: %v, want %q", host, err, why)
				}
			}
		})
	}
}
