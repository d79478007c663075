//go:build linux

package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"packetwalk.dev/internal/answer/explain"
)

// assistant asks a server that was started by a command line.
type assistant struct {
	t      *testing.T
	client *mcp.ClientSession
	out    *lockedBuffer // all that the server wrote
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// result is the structured content of a result.
type result struct {
	ExitStatus int
	Meaning    string
	Text       string
	Document   json.RawMessage
	Omitted    string
}

// startMCP runs 'packetwalk mcp' with arguments until the test ends. It checks that its standard output has messages alone.
func startMCP(t *testing.T, args ...string) *assistant {
	t.Helper()
	in, questions, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, out := io.Pipe()
	a := &assistant{t: t, out: &lockedBuffer{}}
	var errs lockedBuffer
	status := make(chan int, 1)
	go func() {
		status <- Main(append([]string{"mcp"}, args...), Streams{In: in, Out: io.MultiWriter(a.out, out), Err: &errs})
		_ = out.Close()
	}()
	a.client, err = mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, nil).
		Connect(t.Context(), &mcp.IOTransport{Reader: answers, Writer: questions}, nil)
	if err != nil {
		t.Fatal(err, errs.String())
	}
	t.Cleanup(func() {
		_ = questions.Close()
		if got := <-status; got != 0 || errs.Len() > 0 {
			t.Errorf("exit status %d, standard error %s", got, errs.String())
		}
		lines := bufio.NewScanner(&a.out.Buffer)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var message struct {
				JSONRPC string `json:"jsonrpc"`
			}
			if err := json.Unmarshal(lines.Bytes(), &message); err != nil || message.JSONRPC != "2.0" {
				t.Errorf("standard output has the line %q", lines.Text())
			}
		}
	})
	return a
}

// ask calls a tool.
func (a *assistant) ask(tool string, arguments map[string]any) result {
	a.t.Helper()
	called, err := a.client.CallTool(a.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
	if err != nil {
		a.t.Fatal(err)
	}
	var r result
	encoded, err := json.Marshal(called.StructuredContent)
	if err == nil {
		err = json.Unmarshal(encoded, &r)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	if text := called.Content[0].(*mcp.TextContent).Text; !strings.HasSuffix(text, "\n"+r.Text) || called.IsError != (r.Document == nil && r.Omitted == "") {
		a.t.Errorf("error %v, text %q, structured %+v", called.IsError, text, r)
	}
	return r
}

// walkOf reads the document of a walk.
func (a *assistant) walkOf(r result) (d explain.Document) {
	a.t.Helper()
	if err := json.Unmarshal(r.Document, &d); err != nil {
		a.t.Fatal(err, r)
	}
	return d
}

// unknownRules have a match that packetwalk does not know.
const unknownRules = `# ip address
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP group default qlen 1000
    inet 10.0.0.1/24 brd 10.0.0.255 scope global eth0
# iptables-save
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
-A INPUT -m nosuchmatch --weather rain -j DROP
COMMIT
`

// TestMCPTools: without a lab's tools, everything only reads.
func TestMCPTools(t *testing.T) {
	a := startMCP(t, "--snapshot", worldA)
	tools, err := a.client.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tool := range tools.Tools {
		names = append(names, tool.Name)
		schema, err := json.Marshal(tool.InputSchema)
		if err != nil || !strings.Contains(string(schema), `"snapshot":{"type":"string"`) && !strings.Contains(string(schema), `"snapshot":{"description"`) {
			t.Errorf("%s takes %s, %v", tool.Name, schema, err)
		}
		if !tool.Annotations.ReadOnlyHint {
			t.Errorf("%s does not only read", tool.Name)
		}
	}
	if want := []string{"ends", "host", "rules", "walk"}; !slices.Equal(names, want) {
		t.Errorf("tools %v, want %v", names, want)
	}
	page, err := a.client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "packetwalk://docs/agents.md"})
	if err != nil || !strings.Contains(page.Contents[0].Text, "Exit status 3 is no answer") {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestMCPWalk: 'walk -o json' prints the same document, and the text has the answer first.
func TestMCPWalk(t *testing.T) {
	a := startMCP(t, "--snapshot", worldA)
	ends := a.ask("ends", map[string]any{"find": "whereami"})
	if !strings.Contains(ends.Text, "svc/default/whereami\n") || !strings.Contains(ends.Text, "pod/default/whereami-") {
		t.Fatalf("%+v", ends)
	}
	question := map[string]any{"from": "internet", "to": "svc/whereami", "at": "node/aks-nodepool1-31351229-0"}
	all := a.ask("walk", question)
	d := a.walkOf(all)
	if len(d.Outcomes) < 2 || len(d.Outcomes[0].Results) > 0 || !strings.Contains(all.Omitted, "steps of the outcomes are left out") ||
		strings.Count(all.Text, " of ") < len(d.Outcomes) {
		t.Errorf("%+v", all)
	}
	question["choose"] = "1"
	one := a.ask("walk", question)
	if d := a.walkOf(one); len(d.Outcomes) != 1 || !strings.HasPrefix(one.Text, d.Headline+"\n") || one.Omitted != "" {
		t.Errorf("%d outcomes, headline %q, text\n%s", len(d.Outcomes), d.Headline, one.Text)
	}
	var out, errs bytes.Buffer
	status := Main([]string{"walk", "--snapshot", worldA, "--from", "internet", "--to", "svc/whereami", "--at", "node/aks-nodepool1-31351229-0",
		"--choose", "1", "-o", "json"}, Streams{In: os.Stdin, Out: &out, Err: &errs})
	var printed, answered any
	if err := errors.Join(json.Unmarshal(out.Bytes(), &printed), json.Unmarshal(one.Document, &answered)); err != nil {
		t.Fatal(err, errs.String())
	}
	if diff := cmp.Diff(printed, answered); one.ExitStatus != status || diff != "" {
		t.Errorf("exit status %d, of the command line %d; document:\n%s", one.ExitStatus, status, diff)
	}
	for _, format := range []string{"text", "wide"} {
		question["format"] = format
		if r := a.ask("walk", question); !strings.Contains(r.Text, "\nnode aks-nodepool1-31351229-0\n") {
			t.Errorf("%s:\n%s", format, r.Text)
		}
	}
}

// TestMCPUnknown: what is not known has exit status 3 and says so first; what is assumed is in the text and in the document.
func TestMCPUnknown(t *testing.T) {
	a := startMCP(t, "--files", t.TempDir())
	r := a.ask("walk", map[string]any{"text": unknownRules, "from": "10.0.0.9", "to": "10.0.0.1:80"})
	if r.ExitStatus != 3 || !strings.HasPrefix(r.Meaning, "UNKNOWN: ") || !strings.Contains(r.Text, "nosuchmatch") {
		t.Errorf("%+v", r)
	}
	d := a.walkOf(r)
	if len(d.Assumed) == 0 {
		t.Fatalf("nothing is assumed: %s", r.Document)
	}
	for _, assumed := range d.Assumed {
		if !strings.Contains(r.Text, "assumed: "+assumed.Node+": "+assumed.What+"\n") {
			t.Errorf("%q is not in the text:\n%s", assumed.What, r.Text)
		}
	}
	known := a.ask("walk", map[string]any{"text": strings.Replace(unknownRules, "-m nosuchmatch --weather rain", "-p tcp -m tcp --dport 80", 1),
		"from": "10.0.0.9", "to": "10.0.0.1:80"})
	if known.ExitStatus != 0 || !strings.Contains(known.Text, "dropped: filter INPUT 1") {
		t.Errorf("%+v", known)
	}
}

// TestMCPUnknownState: a state of which a part was not read is unknown, also where nothing is found in it.
func TestMCPUnknownState(t *testing.T) {
	a := startMCP(t, "--files", t.TempDir())
	for _, c := range []struct {
		tool string
		args map[string]any
		why  string
	}{
		{"rules", map[string]any{}, "nftables rules: not in the text"},
		{"rules", map[string]any{"find": "nothing-has-this"}, "no rule and no chain that is known has"},
		{"host", map[string]any{}, "unknown: "},
	} {
		c.args["text"], c.args["host"] = unknownRules, "node/node"
		if r := a.ask(c.tool, c.args); r.ExitStatus != 3 || !strings.HasPrefix(r.Meaning, "UNKNOWN: ") || !strings.Contains(r.Text, c.why) {
			t.Errorf("%s %v: %+v", c.tool, c.args, r)
		}
	}
}

// TestMCPRules: a rule comes with its writer and its reason, found by its chain or by a word of it.
func TestMCPRules(t *testing.T) {
	a := startMCP(t, "--snapshot", worldA)
	const host = "node/aks-nodepool1-31351229-0"
	if r := a.ask("rules", map[string]any{"host": host}); !strings.Contains(r.Text, "  KUBE-SERVICES: ") || r.ExitStatus != 0 {
		t.Errorf("%+v", r)
	}
	if r := a.ask("rules", map[string]any{"host": host, "chain": "KUBE-SERVICES", "table": "nat"}); !strings.Contains(r.Text,
		"ip nat KUBE-SERVICES: ") || !strings.Contains(r.Text, "(service proxy: default/whereami") {
		t.Errorf("%+v", r)
	}
	if r := a.ask("rules", map[string]any{"host": host, "find": "MASQUERADE"}); !strings.Contains(r.Text, "ip nat KUBE-POSTROUTING ") {
		t.Errorf("%+v", r)
	}
	if r := a.ask("rules", map[string]any{"host": host, "chain": "KUBE-SERVICES"}); r.ExitStatus != 2 || !strings.Contains(r.Text, "specify table") {
		t.Errorf("%+v", r)
	}
	if r := a.ask("host", map[string]any{"host": host}); !strings.Contains(r.Text, "routes: ") || !strings.Contains(r.Text, "Node aks-nodepool1-31351229-0") {
		t.Errorf("%+v", r)
	}
}

// TestMCPInput: mistakes have exit status 2 and a remedy, and files are those of the directory.
func TestMCPInput(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "rules.txt"), []byte(unknownRules), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	a := startMCP(t, "--files", dir)
	walk := func(more map[string]any) map[string]any {
		all := map[string]any{"from": "10.0.0.9", "to": "10.0.0.1:80"}
		for name, value := range more {
			all[name] = value
		}
		return all
	}
	for _, tt := range []struct {
		name, tool string
		arguments  map[string]any
		status     int
		want       string
	}{
		{"relative file", "walk", walk(map[string]any{"snapshot": "rules.txt"}), 3, "rules.txt"},
		{"absolute file", "walk", walk(map[string]any{"snapshot": filepath.Join(dir, "rules.txt")}), 3, "rules.txt"},
		{"file elsewhere", "walk", walk(map[string]any{"snapshot": "/etc/passwd"}), 2, "not below " + dir},
		{"parent", "walk", walk(map[string]any{"snapshot": "../x"}), 2, "not below " + dir},
		{"link", "walk", walk(map[string]any{"snapshot": "link"}), 2, "escapes"},
		{"directory", "walk", walk(map[string]any{"snapshot": "."}), 2, "not a regular file"},
		{"absent", "walk", walk(map[string]any{"snapshot": "absent"}), 2, "no such file"},
		{"both", "walk", walk(map[string]any{"snapshot": "rules.txt", "text": "x"}), 2, "not both"},
		{"live", "walk", walk(map[string]any{"live": true}), 2, `unknown field "live"`},
		{"no ends", "walk", map[string]any{"text": unknownRules}, 2, "both ends"},
		{"bad end", "walk", map[string]any{"text": unknownRules, "from": "pod/A", "to": "10.0.0.1"}, 2, "capital letters"},
		{"bad format", "walk", walk(map[string]any{"text": unknownRules, "format": "pcapng"}), 2, "use short, text or wide"},
		{"no rules", "walk", walk(map[string]any{"text": "hello"}), 2, "neither a capture nor a text"},
		{"no host", "host", map[string]any{"text": unknownRules, "host": "node/x"}, 2, `no host "node/x"`},
		{"no chain", "rules", map[string]any{"text": unknownRules, "host": "node/node", "chain": "X"}, 2, `no chain "X" is known`},
		{"chain and word", "rules", map[string]any{"text": unknownRules, "host": "node/node", "chain": "X", "find": "X"}, 2, "not both"},
		{"long drops", "drops", map[string]any{"seconds": 61}, 2, "from 1 to 60"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a.t = t
			if r := a.ask(tt.tool, tt.arguments); r.ExitStatus != tt.status || !strings.Contains(r.Text, tt.want) {
				t.Errorf("exit status %d, want %d; %q", r.ExitStatus, tt.status, r.Text)
			}
		})
	}
}

// TestMCPHostile: names and comments of a capture have no control characters, neither in texts nor in decoded documents.
func TestMCPHostile(t *testing.T) {
	file := hostileCapture(t)
	a := startMCP(t, "--snapshot", file)
	const host = "node/aks-nodepool1-31351229-0"
	seen := ""
	for _, question := range []struct {
		tool      string
		arguments map[string]any
	}{
		{"ends", map[string]any{}},
		{"walk", map[string]any{"from": "internet", "to": "svc/whereami", "at": host, "choose": "1"}},
		{"walk", map[string]any{"from": "internet", "to": "svc/whereami", "at": host, "format": "wide"}},
		{"walk", map[string]any{"from": "pod/nosuch\x1b[2J", "to": "svc/whereami"}},
		{"host", map[string]any{"host": host}},
		{"rules", map[string]any{"host": host, "find": "whereami"}},
		{"rules", map[string]any{"host": host, "chain": "KUBE-SERVICES", "table": "nat"}},
	} {
		r := a.ask(question.tool, question.arguments)
		onlyText(t, question.tool, r.Text)
		var document any
		if r.Document != nil {
			if err := json.Unmarshal(r.Document, &document); err != nil {
				t.Fatal(err)
			}
		}
		visitStrings(document, func(s string) { onlyText(t, question.tool+"'s document", strings.ReplaceAll(s, "\n", "\x00")) })
		seen += r.Text
	}
	for _, want := range []string{`\u001b[2J`, `\u202e`} {
		if !strings.Contains(seen, want) {
			t.Errorf("%s is nowhere", want)
		}
	}
}

// visitStrings calls visit with the strings of a decoded document.
func visitStrings(value any, visit func(string)) {
	switch value := value.(type) {
	case string:
		visit(value)
	case []any:
		for _, one := range value {
			visitStrings(one, visit)
		}
	case map[string]any:
		for name, one := range value {
			visit(name)
			visitStrings(one, visit)
		}
	}
}

// TestMCPCancel: a question that is cancelled ends without an answer.
func TestMCPCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var tools agentTools
	answer, err := tools.walkPacket(ctx, walkArguments{subjectArguments: subjectArguments{Text: unknownRules}, From: "10.0.0.9", To: "10.0.0.1:80"})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, error %v", answer, err)
	}
}

// TestMCPProcess: clients start the programs, whose standard output has nothing but answers. On a cluster, only --read-nodes starts pods.
func TestMCPProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	rules := map[string]any{"from": "10.0.0.9", "to": "10.0.0.1:80", "text": unknownRules}
	named := map[string]any{"from": "pod/a", "to": "10.0.0.1:80"}
	for _, tt := range []struct {
		name      string
		command   []string
		arguments map[string]any
		want      string
	}{
		{"text", []string{"packetwalk", "mcp"}, rules, "exit status 3: UNKNOWN"},
		{"plugin with a text", []string{"kubectl-packetwalk", "mcp"}, rules, "exit status 3: UNKNOWN"},
		{"plugin without pods", []string{"kubectl-packetwalk", "mcp"}, named, "start the server with --read-nodes"},
		{"plugin without a cluster", []string{"kubectl-packetwalk", "mcp", "--read-nodes", "--image", "x"}, named, "no cluster is configured"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			command := exec.Command(self)
			command.Args = tt.command // TestMain runs the program of this name
			command.Env = append(os.Environ(), "KUBECONFIG=", "HOME="+t.TempDir())
			client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "v1"}, nil).
				Connect(t.Context(), &mcp.CommandTransport{Command: command}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			r, err := client.CallTool(t.Context(), &mcp.CallToolParams{Name: "walk", Arguments: tt.arguments})
			if err != nil {
				t.Fatal(err)
			}
			if text := r.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, tt.want) {
				t.Errorf("%q, want %q", text, tt.want)
			}
		})
	}
}

// TestOpenFiles: the root directory is no default.
func TestOpenFiles(t *testing.T) {
	t.Chdir("/")
	if files, err := openFiles(""); files != nil || err != nil {
		t.Errorf("%v, %v", files, err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	for _, directory := range []string{"", ".", dir} {
		files, err := openFiles(directory)
		if err != nil || files.Name() != dir {
			t.Errorf("%q: %v, %v", directory, files, err)
			continue
		}
		_ = files.Close()
	}
}
