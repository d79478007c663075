package tour

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/base/procstat"
)

var update = flag.Bool("update", false, "rewrite testdata/*.txtar")

// TestGolden: a page, what its commands print in a run, and what the comparison says of each step: ok or the line that is missing, the
// page's text with the run's names, and the page rewritten with the outputs of the run.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			said, rewritten := play(t, section(a, "page"), strings.Split(section(a, "outputs"), "----\n"))
			if *update {
				setSection(a, "said", said)
				setSection(a, "rewritten", rewritten)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if d := cmp.Diff(section(a, "said"), said); d != "" {
				t.Errorf("said (-want +got):\n%s", d)
			}
			if d := cmp.Diff(section(a, "rewritten"), rewritten); d != "" {
				t.Errorf("rewritten (-want +got):\n%s", d)
			}
		})
	}
}

// endpoint reports whether a chain is an endpoint's, as the writers of the chains would.
func endpoint(chain string) bool { return strings.HasPrefix(chain, "KUBE-SEP-") }

// play compares outputs with a page's steps, one after the other.
func play(t *testing.T, page string, outputs []string) (said, rewritten string) {
	t.Helper()
	script, err := Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	names := newNames(script.Varies, endpoint)
	changed := map[int][]string{}
	next := 0
	for _, section := range script.Sections {
		for _, item := range section.Items {
			if item.Step == nil {
				fmt.Fprintf(&b, "text: %s\n", names.Here(item.Text))
				continue
			}
			if next == len(outputs) {
				t.Fatalf("no output for %s", item.Step.Command)
			}
			fmt.Fprintf(&b, "%s\n", names.Here(item.Step.Command))
			if d := names.Compare(item.Step, Lines(outputs[next])); d != nil {
				fmt.Fprintf(&b, "  %v\n", d)
				changed[item.Step.Line] = adopt(names, item.Step, outputs[next])
			} else {
				fmt.Fprintln(&b, "  ok")
			}
			next++
		}
	}
	rewritten, err = Rewrite(page, changed)
	if err != nil {
		t.Fatal(err)
	}
	return b.String(), rewritten
}

func section(a *txtar.Archive, name string) string {
	for _, f := range a.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func setSection(a *txtar.Archive, name, text string) {
	for i := range a.Files {
		if a.Files[i].Name == name {
			a.Files[i].Data = []byte(text)
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
}

// TestVaries: what may stand in place of each shape, and what may not. In each pair of lines the page has the first.
func TestVaries(t *testing.T) {
	ranges := []Range{mustRange(t, "10.0.0.11-10.0.255.254"), mustRange(t, "10.13.76.5-10.13.76.34")}
	same := [][2]string{
		{"whereami-58ffd64b78-rrbwh   1/1     Running   0          5s", "whereami-7c9d8f6b5-x2x4z    1/1   Running 0   2m5s"},
		{"whereami   10.13.76.6:80,10.13.76.7:80   5s", "whereami   10.13.76.30:80,10.13.76.5:80   17s"},
		{"  6.2 s  1 of 1 nodes Ready", " 12.0 s  1 of 1 nodes Ready"},
		{`   0.1 s  lab "a" is ready`, `  22.1 s  lab "tour-azure-cni" is ready`},
		{"tcp      6 114 TIME_WAIT src=198.51.100.10 sport=35164 dport=80 use=1",
			"tcp      6 7 TIME_WAIT src=198.51.100.10 sport=1024 dport=80 use=2"},
		{"    0     0 DNAT       tcp  --  *      *       0.0.0.0/0", " 6M  628K DNAT       6    --  *      *       0.0.0.0/0"},
		{"19:51:34.825827 IP 168.63.129.16.46651 > 10.13.76.4.30263: Flags [S], seq 31, win 9, length 0",
			"00:00:00.000000 IP 168.63.129.16.59999 > 10.13.76.4.32767: Flags [S], seq 4, win 10, length 0"},
		{"service/whereami created", "service/whereami unchanged"},
		{"10.0.1.0/24 and 10.0.1.0/25 hold 10.0.1.5", "10.0.2.0/24 and 10.0.1.0/25 hold 10.0.1.6"},
		{"kernel: 52 of 52 steps agree", "kernel: 60 of 60 steps agree"},
		{"a … c", "a b b c"},
		{"-A KUBE-SVC-4N57TFCL4MD7ZTDA -j KUBE-SEP-66QNMC7FITAI6UHV", "-A KUBE-SVC-4N57TFCL4MD7ZTDA -j KUBE-SEP-D27HGEPMBQMIMSQA"},
		{`10.13.76.9 - - [21/Nov/2026:20:00:00 +0000] "GET / HTTP/1.1" 200 615 "-" "curl/7.88.1" "-"`,
			`10.13.76.9 - - [22/Dec/2027:01:02:03 +0000] "GET / HTTP/1.1" 200 615 "-" "curl/8.5.0" "-"`},
	}
	for _, pair := range same {
		if d := newNames(ranges, endpoint).Compare(&Step{Output: pair[:1]}, pair[1:]); d != nil {
			t.Errorf("%q may not stand for %q", pair[1], pair[0])
		}
	}
	different := [][2]string{
		{"whereami-58ffd64b78-rrbwh", "whoami-58ffd64b78-rrbwh"},
		{"10.13.76.4", "10.13.76.5"}, // the node's own address is in no range
		{"10.13.76.6", "10.13.76.4"}, // the other way round
		{"10.13.76.6 10.13.76.7", "10.13.76.6 10.13.76.6"},
		{"10.0.1.0/24", "10.0.1.0/25"},
		{"10.0.1.0/24 10.0.1.0/24", "10.0.1.0/24 10.0.2.0/24"},
		{"10.13.76.6 10.13.76.6", "10.13.76.6 10.13.76.7"},
		{"resyncInterval: 60s", "resyncInterval: 30s"},
		{"--dport 30263", "--dport 40000"},
		{"sport=35164 dport=80", "sport=35164 dport=443"},
		{"sport=80 dport=35164", "sport=35164 dport=35164"},
		{"ttl=64 time=0.1 ms", "ttl=63 time=0.1 ms"},
		{"--probability 0.50000000000", "--probability 0.33333333349"},
		{"32768-60999", "1024-65535"},
		{"kernel: 52 of 52 steps agree", "kernel: 51 of 52 steps agree"},
		{"service/whereami created", "service/whereami deleted"},
		{"a … c", "a b b"},
		{"ab", "a b"},
		{"-j KUBE-SVC-4N57TFCL4MD7ZTDA", "-j KUBE-SVC-LC5QY66VUV2HJ6WZ"}, // called after a service's name
		{"-j KUBE-SEP-66QNMC7FITAI6UHV", "-j KUBE-XEP-D27HGEPMBQMIMSQA"},
	}
	for _, pair := range different {
		if newNames(ranges, endpoint).Compare(&Step{Output: pair[:1]}, pair[1:]) == nil {
			t.Errorf("%q may stand for %q", pair[1], pair[0])
		}
	}
}

// TestNames: a name stands for the same one on the whole page; what was compared in vain leaves none behind.
func TestNames(t *testing.T) {
	n := newNames([]Range{mustRange(t, "10.0.0.0/24")}, endpoint)
	compare := func(page, here string, anyOrder bool) bool {
		t.Helper()
		return n.Compare(&Step{Output: strings.Split(page, "\n"), AnyOrder: anyOrder}, strings.Split(here, "\n")) == nil
	}
	if compare("10.0.0.1\nx", "10.0.0.9\ny", false) {
		t.Error("x is y")
	}
	if !compare("10.0.0.1\n10.0.0.2", "10.0.0.2\n10.0.0.1", false) {
		t.Error("names may change places: nothing was learned yet")
	}
	if got := n.Here("from 10.0.0.1 to 10.0.0.2:80, not 10.0.0.11"); got != "from 10.0.0.2 to 10.0.0.1:80, not 10.0.0.11" {
		t.Errorf("here: %s", got)
	}
	if got := n.Page("from 10.0.0.2 to 10.0.0.1:80, not 10.0.0.11"); got != "from 10.0.0.1 to 10.0.0.2:80, not 10.0.0.11" {
		t.Errorf("page: %s", got)
	}
	if compare("10.0.0.1", "10.0.0.1", false) {
		t.Error("10.0.0.1 stands for 10.0.0.2 already")
	}
	// The first line could be either; the second one says which.
	if !compare("10.0.0.3 x\n10.0.0.3 y", "10.0.0.5 x\n10.0.0.4 x\n10.0.0.4 y\n10.0.0.5 z", true) == false {
		t.Error("two lines are more than the page has")
	}
	if !compare("10.0.0.3 x\n10.0.0.3 y\n…", "10.0.0.5 x\n10.0.0.4 x\n10.0.0.4 y\n10.0.0.5 z", true) || n.Here("10.0.0.3") != "10.0.0.4" {
		t.Errorf("10.0.0.3 is %s", n.Here("10.0.0.3"))
	}
	n.Forget()
	if !compare("10.0.0.1", "10.0.0.1", false) {
		t.Error("a name is left of what is gone")
	}
}

// TestBounded: an output that could be taken in very many ways ends soon.
func TestBounded(t *testing.T) {
	page := strings.Repeat("…\na\n", 40) + "b"
	done := make(chan bool)
	go func() {
		done <- newNames(nil, endpoint).Compare(&Step{Output: strings.Split(page, "\n")},
			strings.Split(strings.Repeat("a\n", 200)+"c", "\n")) == nil
	}()
	select {
	case same := <-done:
		if same {
			t.Error("b was found")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no end")
	}
}

func TestParseErrors(t *testing.T) {
	const title = "# T\n\n"
	for page, want := range map[string]string{
		"":                                             "no title",
		"text":                                         "no title",
		title + "\xff":                                 "line 3: what is there is no text in UTF-8",
		title + "text":                                 "no steps",
		title + "```console\n$ a\n":                    "line 3: a fence that does not end",
		title + "```console\n```":                      "line 4: a console block that ends where a command should be",
		title + "```console\n$ a \\\n```":              "line 5: a console block that ends where a command should be",
		title + "```console\noutput\n```":              "line 4: output without a command",
		title + "# again\n```console\n$ a\n```":        "line 3: a second title",
		title + "<!-- varies: 10.0.0.1/24 -->\n":       "line 3: 10.0.0.1/24 has bits set after its prefix length: write 10.0.0.0/24",
		title + "<!-- varies: somewhere -->\n":         `line 3: "somewhere" is no range of addresses`,
		title + "<!-- varies: 10.0.0.9-10.0.0.1 -->\n": `no range of addresses`,
	} {
		if _, err := Parse(page); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", page, err, want)
		}
	}
	if _, err := Rewrite(title+"```console\n$ a\n```", map[int][]string{4: {"$ b"}}); err == nil {
		t.Error("an output that would be a command")
	}
}

// TestPages: in the examples every section with commands says at its end what they show, and a command uses no name that no output before
// it has: it could not be put right.
func TestPages(t *testing.T) {
	files, err := filepath.Glob("../../examples/*/README.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	for _, file := range files {
		page, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		script, err := Parse(string(page))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, s := range script.Sections {
			if len(s.Items) > 0 && s.Items[len(s.Items)-1].Step != nil {
				t.Errorf("%s: nothing says what the commands of %q show", file, s.Heading)
			}
		}
		names, shown := newNames(script.Varies, endpoint), map[string]bool{}
		for _, s := range script.Steps() {
			for _, k := range names.tokens(s.Command) {
				if name := s.Command[k.from:k.to]; k.kind.text && k.kind.name != "node" && k.kind.name != "prefix" && !shown[name] {
					t.Errorf("%s: line %d: no output has shown %s yet", file, s.Line, name)
				}
			}
			for _, line := range s.Output {
				for _, k := range names.tokens(line) {
					shown[line[k.from:k.to]] = true
				}
			}
			if strings.HasPrefix(s.Command, "packetwalk down") {
				clear(shown)
			}
		}
	}
}

func mustRange(t *testing.T, text string) Range {
	t.Helper()
	r, err := parseRange(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// FuzzPage: no page and no output makes a panic; a page that is rewritten with its own outputs stays as it is, and its own outputs are
// what it has.
func FuzzPage(f *testing.F) {
	files, _ := filepath.Glob("../../examples/*/README.md")
	for _, file := range files {
		page, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(page), "whereami   10.13.76.6:80   5s")
	}
	f.Add("# T\n<!-- varies: 10.0.0.0/8, fd00::1-fd00::9 -->\n```console any-order\n$ a \\\n> b\n10.0.0.1 a-bcdfg\n…\n```\n",
		"10.0.0.2 a-zzzzz")
	f.Add("# T\n```console\n$ a\nb\n```\n", "\xff")
	f.Fuzz(func(t *testing.T, page, line string) {
		script, err := Parse(page)
		if err != nil {
			return
		}
		outputs := map[int][]string{}
		names := newNames(script.Varies, endpoint)
		for _, s := range script.Steps() {
			outputs[s.Line] = s.Output
			names.Compare(s, []string{line})
			names.Page(names.Here(line))
			adopt(names, s, line)
			own := Lines(strings.Join(s.Output, "\n"))
			if d := newNames(script.Varies, endpoint).Compare(s, own); d != nil && len(own) < 50 {
				t.Errorf("%s: its own output is not what the page has: %v", s.Command, d)
			}
		}
		if strings.Contains(page, "\r") {
			return
		}
		if again, err := Rewrite(page, outputs); err == nil && again != page {
			t.Errorf("rewritten:\n%s", cmp.Diff(page, again))
		}
	})
}

const runnerPage = `# T
<!-- varies: 10.0.0.0/24 -->
Intro.

## What is there?

` + "```console" + `
$ cat addresses
10.0.0.1
$ echo "$LAB of 10.0.0.1"
mine of 10.0.0.1
` + "```" + `

It is 10.0.0.1.

` + "```console" + `
$ packetwalk down; echo x >> count; wc -l < count
2
$ echo 10.0.0.1
10.0.0.1
` + "```" + `
`

// TestRun: commands run in the folder with the environment, names that were learned are put into commands and text, a command whose output
// is not there yet is run again, and after "packetwalk down" names are forgotten.
func TestRun(t *testing.T) {
	r, screen := testRunner(t, runnerPage)
	write(t, r.Dir, "addresses", "10.0.0.7\n")
	report, err := r.Run(t.Context())
	if err != nil || len(report.Differ) != 0 || report.Steps != 4 {
		t.Errorf("%v, %+v\n%s", err, report, screen)
	}
	for _, want := range []string{"$ echo \"$LAB of 10.0.0.7\"\nmine of 10.0.0.7\n", "It is 10.0.0.7.", "(asked again, for",
		"$ echo 10.0.0.1\n"} {
		if !strings.Contains(screen.String(), want) {
			t.Errorf("no %q in\n%s", want, screen)
		}
	}
}

// TestRunFailures: an output that differs, a status, a time limit, and something left behind that holds the output.
func TestRunFailures(t *testing.T) {
	r, screen := testRunner(t, "# T\n```console\n$ echo a\nb\n$ echo c; exit 3\nc\n$ sleep 60\n$ echo d\nd\n```\n")
	r.Patience, r.Limit = time.Millisecond, 500*time.Millisecond
	report, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range report.Differ {
		got = append(got, fmt.Sprintf("%d: %v", f.Step.Line, f.Err))
	}
	want := []string{"3: no such line was printed: b", "5: exit status 3", "7: the command did not end within 500ms"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s\n%s", d, screen)
	}
	if d := cmp.Diff([]string{"a"}, report.Outputs[3]); d != "" {
		t.Error(d)
	}
}

// TestRunQuit: what the reader or an interrupt ends is ended, with all that runs for it.
func TestRunQuit(t *testing.T) {
	r, _ := testRunner(t, "# T\n```console\n$ sleep 61 & echo $! > pid; wait\n```\n")
	r.Reader = &reader{answers: []string{"q"}}
	if _, err := r.Run(t.Context()); !errors.Is(err, ErrQuit) {
		t.Errorf("%v", err)
	}
	r.Reader = nil
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if pid, _ := os.ReadFile(filepath.Join(r.Dir, "pid")); len(pid) > 0 {
				cancel()
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	if _, err := r.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	pid, err := os.ReadFile(filepath.Join(r.Dir, "pid"))
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Sscan(string(pid), &n); err != nil {
		t.Fatal(err)
	}
	eventually.Succeeds(t, 30*time.Second, func() error {
		if isRunning := syscall.Kill(n, 0) == nil; !isRunning {
			return nil
		}
		if stat, _ := procstat.Read(fmt.Sprintf("/proc/%d", n)); stat.State == procstat.Zombie {
			return nil // it has ended, and its parent has not noticed yet
		}
		return fmt.Errorf("process %d still runs", n)
	})
}

// A reader answers prompts with lines, and then with the end of the input.
type reader struct {
	answers []string
	prompts []string
	ran     []string // the reader's own commands
}

func (r *reader) Ask(_ context.Context, prompt string) (string, error) {
	r.prompts = append(r.prompts, prompt)
	if len(r.answers) == 0 {
		return "", ErrQuit
	}
	answer := r.answers[0]
	r.answers = r.answers[1:]
	return answer, nil
}

func (r *reader) Run(_ context.Context, command *exec.Cmd) error {
	r.ran = append(r.ran, command.Args[len(command.Args)-1]+" in "+filepath.Base(command.Dir))
	return errors.New("exit status 7")
}

// TestReader: only Enter and the step's own command run the step. The prompt names the keys, and other lines run as the reader's commands.
func TestReader(t *testing.T) {
	page := "# T\n## A\n```console\n$ echo $((++n)) >> ran; echo one\none\n$ echo two\ntwo\n```\n## B\n```console\n$ echo three\nthree\n```\n"
	tests := []struct {
		name    string
		answers []string
		want    string // what the steps print, in their order
		own     []string
		steps   int
	}{
		{"Enter", []string{"", "", ""}, "one two three", nil, 3},
		{"own command", []string{"ls -l", " ", "", ""}, "one two three", []string{"ls -l in DIR"}, 3},
		{"the step typed", []string{"", "echo two", "  "}, "one two three", nil, 3},
		{"back", []string{"", "", "b", "b", "", "", ""}, "one two one two three", nil, 3},
		{"back at the first step", []string{"b", "back", "q"}, "", nil, 0},
		{"end of the input", []string{""}, "one", nil, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, screen := testRunner(t, page)
			answers := &reader{answers: test.answers}
			r.Reader = answers
			report, err := r.Run(t.Context())
			if report.Steps != test.steps || len(report.Differ) > 0 || (err != nil) != (test.steps < 3) {
				t.Errorf("%v, %+v\n%s", err, report, screen)
			}
			var printed []string
			for _, line := range strings.Split(screen.String(), "\n") {
				if line == "one" || line == "two" || line == "three" {
					printed = append(printed, line)
				}
			}
			if got := strings.Join(printed, " "); got != test.want {
				t.Errorf("steps printed %q, want %q\n%s", got, test.want, screen)
			}
			for i, own := range test.own {
				test.own[i] = strings.Replace(own, "DIR", filepath.Base(r.Dir), 1)
			}
			if d := cmp.Diff(test.own, answers.ran); d != "" {
				t.Error(d)
			}
			if want := "step 1 of 3: Enter runs it, b goes back, q ends, anything else runs as your own command: "; answers.prompts[0] != want {
				t.Errorf("prompt %q, want %q", answers.prompts[0], want)
			}
			if len(test.own) > 0 && !strings.Contains(screen.String(), "exit status 7") {
				t.Errorf("the own command's failure is not shown:\n%s", screen)
			}
		})
	}
}

// TestResume: a tour that begins at a bookmark begins with the step behind it, below that step's heading, and knows the names.
func TestResume(t *testing.T) {
	r, _ := testRunner(t, runnerPage)
	write(t, r.Dir, "addresses", "10.0.0.7\n")
	r.Reader = &reader{answers: []string{""}}
	var left Bookmark
	r.Passed = func(b Bookmark) { left = b }
	if _, err := r.Run(t.Context()); !errors.Is(err, ErrQuit) {
		t.Fatal(err)
	}
	if d := cmp.Diff(Bookmark{1, []LearnedName{{"address", "10.0.0.1", "10.0.0.7"}}}, left); d != "" {
		t.Fatal(d)
	}
	r, screen := testRunner(t, runnerPage)
	r.Begin = left
	r.Reader = &reader{answers: []string{""}}
	report, err := r.Run(t.Context())
	if !errors.Is(err, ErrQuit) || report.Steps != 1 || len(report.Differ) > 0 {
		t.Errorf("%v, %+v", err, report)
	}
	if got := screen.String(); !strings.Contains(got, "What is there?") || !strings.Contains(got, "mine of 10.0.0.7\n") || strings.Contains(got, "Intro") {
		t.Errorf("%s", got)
	}
}

func testRunner(t *testing.T, page string) (*Runner, *bytes.Buffer) {
	t.Helper()
	if _, err := exec.LookPath("bash"); err != nil {
		t.Fatal(err)
	}
	script, err := Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	bin := t.TempDir()
	if err := os.Symlink("/bin/true", filepath.Join(bin, "packetwalk")); err != nil {
		t.Fatal(err)
	}
	screen := &bytes.Buffer{}
	return &Runner{Endpoint: endpoint, Script: script, Dir: dir, Env: append(os.Environ(), "LAB=mine", "PATH="+bin+":"+os.Getenv("PATH")),
		View: View{Writer: screen, Width: 80}}, screen
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestWrap(t *testing.T) {
	got := wrap("- a list's item that is long", 12)
	if want := "- a list's\n  item that\n  is long"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
