package explain

import (
	"bytes"
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// mermaidLine is a line of a diagram: nothing else may be in one, whatever names are in it.
var mermaidLine = regexp.MustCompile("^(```(mermaid)?|sequenceDiagram|    participant m[0-9]+ as [^`;<>%{}\"]+|" +
	"    m[0-9]+--?>>m[0-9]+: [^`;<>%{}\"]+|    Note over m[0-9]+(,m[0-9]+)?: [^`;<>%{}\"]+)$")

// checkMermaid fails the test at a line that is none of a diagram. Entities and line breaks are ours.
func checkMermaid(t *testing.T, text string) {
	t.Helper()
	bare := regexp.MustCompile(`#[0-9]+;`).ReplaceAllString(strings.ReplaceAll(text, "<br/>", " "), "_")
	for line := range strings.Lines(bare) {
		if !mermaidLine.MatchString(strings.TrimSuffix(line, "\n")) {
			t.Errorf("a line that is none of a diagram: %q", line)
		}
	}
}

func mermaid(t *testing.T, r *walk.Result, o Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := Mermaid(&b, r, o); err != nil {
		t.Fatal(err)
	}
	checkMermaid(t, b.String())
	return b.String()
}

func TestMermaid(t *testing.T) {
	t.Run("from the internet", func(t *testing.T) {
		e := fromInternet(t)
		got := mermaid(t, e.result, Options{Owners: ownersOf(e.objects)})
		for _, want := range []string{
			"```mermaid\nsequenceDiagram\n    participant m1 as internet client\n",
			"    m1->>m2: tcp 198.51.100.10:40000 → 203.0.113.11:80\n",
			"    Note over m4: DNAT 203.0.113.11:80 → 10.13.76.7:80<br/>by nat KUBE-SEP-EEKBNNDWJBHLLPWP 2 (default/whereami: pod default/whereami-58ffd64b78-65fpd)\n",
			"    Note over m4: SNAT 198.51.100.10:40000 → 10.13.76.4:1024-65535<br/>by nat KUBE-POSTROUTING 3 ",
			"    m4->>m5: tcp 10.13.76.4:1024-65535 → 10.13.76.7:80\n",
			"    m5-->>m4: tcp 10.13.76.7:80 → 10.13.76.4:1024-65535\n",
			"    Note over m1,m5: the destination sees 10.13.76.4:1024-65535, because nat KUBE-POSTROUTING 3: MASQUERADE",
			"\n```\n",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("no %q in\n%s", want, got)
			}
		}
	})
	t.Run("the others", func(t *testing.T) {
		for _, e := range []example{dropped(t), unknown(t), looped(t), toVM(t)} {
			mermaid(t, e.result, Options{Owners: ownersOf(e.objects)})
		}
	})
	t.Run("hostile names", func(t *testing.T) {
		const name = "pod/default/x\n```\n<script>alert(1)</script>;end %%{init: {}}%% #quot; \x1b[2J \u202e\"`"
		p := tcp("10.0.0.1:4000", "0.0.0.1:80")
		r := &walk.Result{Outcomes: []walk.Outcome{{
			There: []walk.Step{{Host: "node/a", Stage: walk.Sent, Packet: p},
				{Host: name, Stage: walk.Translated, Packet: p, Changes: []packet.Change{{Field: "source", From: name, To: name}}}},
			End: walk.End{Kind: walk.Dropped, Host: name, Packet: p, Why: name},
		}}}
		got := mermaid(t, r, Options{Redacted: map[netip.Addr]string{netip.MustParseAddr("0.0.0.1"): "b;\n```"}})
		if strings.ContainsAny(got, "\x1b\u202e") || strings.Count(got, "```") != 2 {
			t.Errorf("a name is more than text:\n%q", got)
		}
	})
}
