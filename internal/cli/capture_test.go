package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/testing/capturetest"
)

const worldA = "../capture/testdata/world-a.pwcap.tar.gz"

// walkOf walks through a capture from its pod to an internet host.
func walkOf(in *os.File, file string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = Main([]string{"walk", "--snapshot", file, "--from", "vm/testvm", "--to", "198.51.100.80:80"}, Streams{In: in, Out: &o, Err: &e})
	return code, o.String(), e.String()
}

// piped gives what reads some bytes and cannot be read at other places.
func piped(t *testing.T, data []byte) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	go func() {
		_, _ = w.Write(data) // the reader may have gone
		_ = w.Close()
	}()
	return r
}

// TestCaptureAndWalk: a capture is its owner's only, and walks go the same ways by the capture that it was made of, by a file, and by a
// pipe. Nothing else is left in the folder.
func TestCaptureAndWalk(t *testing.T) {
	held := capturetest.Open(t, worldA)
	_, want, _ := walkOf(nil, worldA)
	if !strings.Contains(want, "198.51.100.80") {
		t.Fatal(want)
	}
	for _, redacted := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "x.pwcap.tar.gz")
		var out bytes.Buffer
		if err := writeCapture(t.Context(), Streams{Out: &out}, held.Origin(), path, redaction{on: redacted}, nil); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "11 hosts") || strings.Contains(out.String(), "redacted") != redacted {
			t.Errorf("it says %q", out.String())
		}
		info, err := os.Stat(path)
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
		if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
			t.Errorf("left behind: %v", entries)
		}
		if redacted {
			continue // where ends have other names: redact's own test walks there
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for file, in := range map[string]*os.File{path: nil, "-": piped(t, data)} {
			code, got, errs := walkOf(in, file)
			got, _, _ = strings.Cut(got, "prediction only")
			if before, _, _ := strings.Cut(want, "prediction only"); code != 0 || got != before {
				t.Errorf("by %s: exit status %d, %s\n%s\nwant\n%s", file, code, errs, got, before)
			}
		}
	}
}

// TestHalfACapture: what was received by half is refused, from a file and from a pipe.
func TestHalfACapture(t *testing.T) {
	whole := capturetest.Open(t, worldA).Pack(t)
	half := whole[:len(whole)/2]
	path := filepath.Join(t.TempDir(), "x.pwcap.tar.gz")
	if err := os.WriteFile(path, half, 0o600); err != nil {
		t.Fatal(err)
	}
	for file, in := range map[string]*os.File{path: nil, "-": piped(t, half)} {
		if code, out, errs := walkOf(in, file); code != 2 || out != "" || !strings.Contains(errs, "damaged") || !strings.Contains(errs, "copy it again") {
			t.Errorf("%s: exit status %d, %q, %q", file, code, out, errs)
		}
	}
}

// TestNoCaptureIsLeft: after an error, or when it is called off, there is no file, and what was there before stays.
func TestNoCaptureIsLeft(t *testing.T) {
	held := capturetest.Open(t, worldA)
	for _, redacted := range []bool{false, true} {
		for what, stop := range map[string]func(context.CancelFunc) error{
			"an error":   func(context.CancelFunc) error { return errors.New("no such file") },
			"called off": func(cancel context.CancelFunc) error { cancel(); return nil },
		} {
			dir := t.TempDir()
			path := filepath.Join(dir, "x.pwcap.tar.gz")
			if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			origin := held.Origin()
			fetch, hosts := origin.Fetch, []string{"fabric", "internet", "vm/testvm"}
			origin.Fetch = func(name string) (*capture.Raw, error) {
				if name == "internet" {
					if err := stop(cancel); err != nil {
						return nil, err
					}
				}
				return fetch(name)
			}
			if err := writeCapture(ctx, Streams{Out: io.Discard}, origin, path, redaction{on: redacted}, hosts); err == nil {
				t.Errorf("%s: no error", what)
			}
			entries, _ := os.ReadDir(dir)
			if text, _ := os.ReadFile(path); len(entries) != 1 || string(text) != "old" {
				t.Errorf("%s: there are %v, and %d bytes", what, entries, len(text))
			}
		}
	}
}

// TestNothingCaptured: that no tool could print anything is an error that says why, and no file.
func TestNothingCaptured(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pwcap.tar.gz")
	origin := capture.OriginOf([]*capture.Raw{{Name: "node/a", Outputs: map[string]capture.Output{
		"nft.json": {Command: "nft list", Error: "Operation not permitted"}}}}, nil)
	for _, redacted := range []bool{false, true} {
		err := writeCapture(t.Context(), Streams{Out: io.Discard}, origin, path, redaction{on: redacted}, nil)
		if err == nil || !strings.Contains(err.Error(), "nft list: Operation not permitted; it needs root") {
			t.Errorf("error %v", err)
		}
		if _, err := os.Stat(path); err == nil {
			t.Error("there is a file")
		}
	}
}

// TestMap: the map of a redaction is its owner's only, replaces no file, follows no link, and is there only with the capture.
func TestMap(t *testing.T) {
	held := capturetest.Open(t, worldA)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	r := redaction{on: true, file: file("map")}
	if err := writeCapture(t.Context(), Streams{Out: io.Discard}, held.Origin(), file("x"), r, nil); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(r.file)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	text, err := os.ReadFile(r.file)
	if err != nil || !bytes.Contains(text, []byte(`"whereami-`)) {
		t.Errorf("no pod's name in it: %v, %.300s", err, text)
	}
	if err := os.Symlink(file("target"), file("link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"map", "link", "none/map"} {
		r := redaction{on: true, file: file(name)}
		if err := writeCapture(t.Context(), Streams{Out: io.Discard}, held.Origin(), file("y"), r, nil); err == nil {
			t.Errorf("%s was written", name)
		}
		if name != "none/map" && r.check(file("y")) == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if after, err := os.ReadFile(r.file); err != nil || !bytes.Equal(after, text) {
		t.Errorf("the map was changed: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.file = file("broken off")
	if err := writeCapture(ctx, Streams{Out: io.Discard}, held.Origin(), file("z"), r, nil); err == nil {
		t.Error("what was broken off is whole")
	}
	for _, name := range []string{"target", "y", "z", "broken off"} {
		if _, err := os.Lstat(file(name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	if (&redaction{file: "m"}).check("o") == nil || (&redaction{on: true, file: "./o"}).check("o") == nil {
		t.Error("--map without --redact, or of the capture's own file, is accepted")
	}
	if (&redaction{on: true, file: "-"}).check("o") == nil {
		t.Error("--map - is accepted, and writes a file of that name")
	}
}

// TestWalkWithMap shows that a walk through a redacted capture with its map is the walk through the capture itself, in every format, also
// to an address that the capture does not have. The map stays as it is, and no file comes into being.
func TestWalkWithMap(t *testing.T) {
	held := capturetest.Open(t, worldA)
	dir := t.TempDir()
	plain, path, names := filepath.Join(dir, "plain"), filepath.Join(dir, "redacted"), filepath.Join(dir, "names.json")
	for file, r := range map[string]redaction{plain: {}, path: {on: true, file: names}} {
		if err := writeCapture(t.Context(), Streams{Out: io.Discard}, held.Origin(), file, r, nil); err != nil {
			t.Fatal(err)
		}
	}
	before, err := os.ReadFile(names)
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (int, string, string) {
		var o, e bytes.Buffer
		code := Main(append([]string{"walk"}, args...), Streams{Out: &o, Err: &e})
		out := regexp.MustCompile(`taken \S+ \S+`).ReplaceAllString(o.String(), "")
		if slices.Contains(args, "pcapng") { // frames have the time of the capture
			out = strings.Join(regexp.MustCompile(`[ -~]{12,}`).FindAllString(out, -1), "\n")
		}
		return code, out, e.String()
	}
	objects, err := capture.ReadObjects(held.Lists)
	if err != nil {
		t.Fatal(err)
	}
	pod := "pod/" + objects.Pods[0].Namespace + "/" + objects.Pods[0].Name
	for _, ends := range [][]string{
		{"--from", "internet", "--to", "svc/nginx"}, {"--from", "vm/testvm", "--to", "svc/whereami"},
		{"--from", pod, "--to", "svc/kube-system/kube-dns:53", "--proto", "udp"}, {"--from", pod, "--to", "203.0.113.200:443"},
		{"--from", "10.13.76.200", "--to", pod, "--at", "fabric"}, {"--from", "whereami.default.svc", "--to", "vm/testvm:22"},
		{"--from", "pod/none", "--to", "svc/nginx"},
	} {
		for _, format := range []string{"text", "wide", "json", "pcapng"} {
			args := append(slices.Clone(ends), "-o", format)
			code, want, wantErr := run(append(args, "--snapshot", plain)...)
			gotCode, got, gotErr := run(append(args, "--snapshot", path, "--map", names)...)
			if gotCode != code || got != want || gotErr != wantErr {
				t.Errorf("%v: status %d, want %d\n%s%s\nwant\n%s%s", args, gotCode, code, got, gotErr, want, wantErr)
			}
		}
	}
	if after, err := os.ReadFile(names); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the map has changed: %v", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("files %v, %v", entries, err)
	}
	text := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(text, []byte("*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"--map goes with --snapshot":           {"--map", names},
		"the capture is not redacted":          {"--snapshot", plain, "--map", names},
		"is a text, and --map is for a redact": {"--snapshot", text, "--map", names},
		"no such file":                         {"--snapshot", path, "--map", names + "2"},
		"it is not what 'capture --redact":     {"--snapshot", path, "--map", path},
	} {
		code, _, errs := run(append([]string{"--from", "internet", "--to", "svc/nginx"}, args...)...)
		if code != 2 || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: status %d, %q", args, code, errs)
		}
	}
}

// TestOwner shows which rules apply to the packets of a user that --uid names, and that wrong owners are the user's to mend.
func TestOwner(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules")
	const rules = `*nat
:OUTPUT ACCEPT [0:0]
-A OUTPUT -m owner --uid-owner 1337 -j RETURN
-A OUTPUT -m owner --gid-owner 1338 -j RETURN
-A OUTPUT -p tcp -j DNAT --to-destination 10.9.9.9:15001
COMMIT
`
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	walk := func(args ...string) (int, string, string) {
		var o, e bytes.Buffer
		args = append([]string{"walk", "--snapshot", file, "--from", "node/node", "--to", "203.0.113.9:443"}, args...)
		code := Main(args, Streams{Out: &o, Err: &e})
		return code, o.String(), e.String()
	}
	const translated, root, group = "→ 10.9.9.9:15001", "assuming root", "assuming 0"
	for name, c := range map[string]struct {
		args     []string
		has, not []string
	}{
		"nobody named":     {nil, []string{translated, root}, []string{group, "sent by a socket"}},
		"the sidecar":      {[]string{"--uid", "1337"}, []string{"sent by a socket of user 1337\n"}, []string{translated, root, group}},
		"another user":     {[]string{"--uid", "1000"}, []string{translated, group, "sent by a socket of user 1000\n"}, []string{root}},
		"a group":          {[]string{"--uid", "1000:1338"}, []string{"user 1000 and group 1338\n"}, []string{translated, root, group}},
		"user and a group": {[]string{"--uid", "0:0"}, []string{translated, "user 0 and group 0\n"}, []string{root, group}},
	} {
		t.Run(name, func(t *testing.T) {
			_, out, errs := walk(c.args...)
			for _, text := range slices.Concat(c.has, c.not) {
				if strings.Contains(out, text) != slices.Contains(c.has, text) {
					t.Errorf("%q in or missing:\n%s%s", text, out, errs)
				}
			}
		})
	}
	for _, owner := range []string{"istio-proxy", "-1", "4294967295", "1:", ":1", "1:2:3", "0x1"} {
		if code, _, errs := walk("--uid", owner); code != 2 || !strings.Contains(errs, "want numbers, UID or UID:GID") {
			t.Errorf("--uid %s: status %d, %s", owner, code, errs)
		}
	}
	var errs bytes.Buffer
	args := []string{"walk", "--snapshot", file, "--at", "node", "--from", "10.1.1.1", "--to", "203.0.113.9:443", "--uid", "5"}
	if code := Main(args, Streams{Out: io.Discard, Err: &errs}); code != 2 || !strings.Contains(errs.String(), "the sender is not at hand") {
		t.Errorf("status %d, %s", code, &errs)
	}
}

// TestPoliciesOfACapture: a walk through a capture, redacted or not, says which NetworkPolicies select the pods that the packet comes to
// and are not enforced. With --choose it names only those of the pods that are left. A capture without the list says so.
func TestPoliciesOfACapture(t *testing.T) {
	held := capturetest.Open(t, worldA).Complete()
	policy := func(name, selector, kind string) string {
		return `{"metadata":{"namespace":"default","name":"` + name + `"},"spec":{"podSelector":` + selector + `,"policyTypes":["` + kind + `"]}}`
	}
	// The pods of a Deployment differ in no label but one that is made up here.
	held.Lists["pods.json"] = bytes.Replace(held.Lists["pods.json"], []byte(`"app": "nginx",`), []byte(`"app": "nginx", "first": "",`), 1)
	held.Lists[capture.NetworkPoliciesFile] = []byte(`{"items":[` + strings.Join([]string{
		policy("first", `{"matchLabels":{"first":""}}`, "Ingress"),
		policy("second", `{"matchLabels":{"app":"nginx"},"matchExpressions":[{"key":"first","operator":"DoesNotExist"}]}`, "Ingress"),
		policy("sent", `{}`, "Egress"), policy("others", `{"matchLabels":{"app":"whereami"}}`, "Ingress"),
	}, ",") + `]}`)
	walk := func(file string, args ...string) string {
		var o, e bytes.Buffer
		args = append([]string{"walk", "--snapshot", file, "--from", "vm/testvm", "--to"}, args...)
		if code := Main(args, Streams{Out: &o, Err: &e}); code != 0 {
			t.Fatalf("%v: exit status %d: %s", args, code, e.String())
		}
		return o.String()
	}
	count := func(out string) map[string]bool {
		found := map[string]bool{}
		for _, name := range []string{"first", "second", "sent", "others"} {
			found[name] = strings.Contains(out, "NetworkPolicy default/"+name+" is not enforced: node aks-nodepool1-31351229-0 has no rules of")
		}
		return found
	}
	file := filepath.Join(t.TempDir(), "x.pwcap.tar.gz")
	if err := writeCapture(t.Context(), Streams{Out: io.Discard}, held.Origin(), file, redaction{}, nil); err != nil {
		t.Fatal(err)
	}
	const service = "10.13.76.4:" // the node's address
	all := walk(file, service+nginxPort(t, held))
	if got := count(all); !maps.Equal(got, map[string]bool{"first": true, "second": true, "sent": false, "others": false}) {
		t.Errorf("%v in\n%s", got, all)
	}
	for _, number := range []string{"1", "2"} {
		out := walk(file, service+nginxPort(t, held), "--choose", number)
		if got := count(out); got["first"] == got["second"] {
			t.Errorf("--choose %s: not the policy of one pod: %v in\n%s", number, got, out)
		}
	}
	document := walk(file, "10.13.76.6:80", "-o", "json")
	if !strings.Contains(document, `"component": "NetworkPolicy",`) {
		t.Error(document)
	}

	path := filepath.Join(t.TempDir(), "r.pwcap.tar.gz")
	if err := writeCapture(t.Context(), Streams{Out: io.Discard}, held.Origin(), path, redaction{on: true}, nil); err != nil {
		t.Fatal(err)
	}
	c, err := capture.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	source := capture.NewSource(c.Origin())
	names := source.Names()
	vm := names[slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, "vm/") })]
	for i, p := range source.Objects().Pods {
		var o, e bytes.Buffer
		code := Main([]string{"walk", "--snapshot", path, "--from", vm, "--to", p.IPs[0].String() + ":80"}, Streams{Out: &o, Err: &e})
		found := regexp.MustCompile(`NetworkPolicy default/netpol-\w+ is not enforced`).FindAllString(o.String(), -1)
		if code != 0 || len(found) != 2 || found[0] != found[1] { // assumed, and in the conclusion
			t.Errorf("pod %d: exit status %d, %s, %q in\n%s", i, code, e.String(), found, o.String())
		}
	}

	var o bytes.Buffer
	Main([]string{"walk", "--snapshot", worldA, "--from", "vm/testvm", "--to", "10.13.76.6:80"}, Streams{Out: &o, Err: io.Discard})
	if !strings.Contains(o.String(), "whether a NetworkPolicy selects it is not known: there is no list of NetworkPolicies") {
		t.Error(o.String())
	}
}

// nginxPort returns the node port of world A's service nginx.
func nginxPort(t *testing.T, held *capturetest.Content) string {
	t.Helper()
	objects, err := capture.ReadObjects(held.Lists)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range objects.Services {
		if s.Name == "nginx" {
			return strconv.Itoa(int(s.Ports[0].NodePort))
		}
	}
	t.Fatal("no service nginx")
	return ""
}

// TestRedactedWithAzure shows that a redacted capture does not go with Azure's own names, and that the error says so and what to do.
func TestRedactedWithAzure(t *testing.T) {
	held := capturetest.Open(t, worldA)
	held.Hosts = slices.DeleteFunc(held.Hosts, func(h *capture.Raw) bool { return h.Name == "fabric" })
	dir := t.TempDir()
	nic := filepath.Join(dir, "nic.json")
	const text = `[{"id": "/subscriptions/s/resourceGroups/MC_a/providers/Microsoft.Network/networkInterfaces/testvm-nic", "name": "testvm-nic",
"macAddress": "00-0D-3A-00-00-01", "ipConfigurations": [{"primary": true, "privateIpAddress": "10.13.76.4"}]}]`
	if err := os.WriteFile(nic, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, redacted := range []bool{false, true} {
		path := filepath.Join(dir, fmt.Sprintf("%t.pwcap.tar.gz", redacted))
		if err := writeCapture(t.Context(), Streams{Out: io.Discard}, held.Origin(), path, redaction{on: redacted}, nil); err != nil {
			t.Fatal(err)
		}
		for _, azure := range []string{nic, byLogin, "/subscriptions/s/resourceGroups/MC_a"} {
			if !redacted && azure != nic {
				continue
			}
			var errs bytes.Buffer
			args := []string{"walk", "--snapshot", path, "--from", "10.1.2.3", "--at", "fabric", "--to", "198.51.100.80:80", "--azure=" + azure}
			code := Main(args, Streams{Out: io.Discard, Err: &errs})
			says := strings.Contains(errs.String(), "the capture is redacted") && strings.Contains(errs.String(), redactedRemedy)
			if says != redacted || redacted && code != 2 {
				t.Errorf("redacted %t, --azure=%s: status %d, %s", redacted, azure, code, &errs)
			}
		}
	}
}
