package cni

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/plugins/pkg/ns"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestMain makes this test's binary the plugin itself when it is run by the plugin's name: the tests run what a runtime runs.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == pluginName {
		if limit, err := time.ParseDuration(os.Getenv(limitVariable)); err == nil {
			programLimit = limit
		}
		skel.PluginMainFuncs(Funcs(os.Stdout), Versions(), "test")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const pluginName = "packetwalk-cni"

// limitVariable names the variable with another programLimit.
const limitVariable = "PACKETWALK_TEST_PROGRAM_LIMIT"

var worlds atomic.Int32

// world is a node (eth0 10.13.76.4/24) on a network like Azure's: the fabric answers every ARP as 12:34:56:78:9a:bc and routes; 10.13.1.4
// is behind it.
type world struct {
	t      *testing.T
	prefix string
	mode   netMode
	bin    string // CNI_PATH
	state  string
	change map[string]any // of the configuration
	pods   []string
}

// newWorld makes a world beside those of other tests: most of their time is the kernel's, for links and namespaces that go.
func newWorld(t *testing.T, mode netMode) *world {
	t.Helper()
	t.Parallel()
	kerneltest.NeedRoot(t)
	w := &world{t: t, mode: mode, bin: t.TempDir(), state: t.TempDir(), prefix: fmt.Sprintf("pwcni-%d-%d-", os.Getpid(), worlds.Add(1))}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(w.bin, pluginName)); err != nil {
		t.Fatal(err)
	}
	w.netns("fabric")
	w.run("ip", "-n", w.name("fabric"), "link", "set", "lo", "up")
	w.in("fabric", "sysctl", "-qw", "net.ipv4.ip_forward=1")
	for _, addr := range []string{"10.13.76.1/32", "10.13.1.4/32"} {
		w.run("ip", "-n", w.name("fabric"), "addr", "add", addr, "dev", "lo")
	}
	w.boot()
	return w
}

// boot makes the node. Called again after the node's namespace was deleted, it is a reboot.
func (w *world) boot() {
	w.t.Helper()
	w.netns("node")
	fabric, node := w.name("fabric"), w.name("node")
	w.run("ip", "-n", fabric, "link", "add", "n0", "address", "12:34:56:78:9a:bc", "type", "veth", "peer", "name", "eth0", "netns", node,
		"address", "00:0d:3a:28:bd:02")
	w.run("ip", "-n", fabric, "link", "set", "n0", "up")
	w.in("fabric", "sysctl", "-qw", "net.ipv4.conf.n0.proxy_arp=1", "net.ipv4.neigh.n0.proxy_delay=0")
	w.run("ip", "-n", fabric, "route", "add", "10.13.76.4", "dev", "n0")
	if w.mode == modeKubenet {
		w.run("ip", "-n", fabric, "route", "add", "10.13.78.0/24", "via", "10.13.76.4", "dev", "n0", "onlink")
	}
	for i := 5; i <= 34; i++ {
		route := []string{"-n", fabric, "route", "add", fmt.Sprintf("10.13.76.%d", i)}
		if w.mode == modeTransparent { // nothing on the node answers ARP for pods
			route = append(route, "via", "10.13.76.4", "onlink")
		}
		w.run("ip", append(route, "dev", "n0")...)
	}
	w.run("ip", "-n", node, "link", "set", "lo", "up")
	w.run("ip", "-n", node, "link", "set", "eth0", "mtu", "1400", "up")
	w.run("ip", "-n", node, "addr", "add", "10.13.76.4/24", "dev", "eth0")
	w.run("ip", "-n", node, "route", "add", "default", "via", "10.13.76.1", "dev", "eth0")
	w.run("ip", "-n", node, "route", "add", "10.99.0.0/16", "via", "10.13.76.1", "dev", "eth0", "metric", "50")
}

func (w *world) name(host string) string { return w.prefix + host }
func (w *world) path(host string) string { return "/run/netns/" + w.name(host) }

// kill deletes a namespace and waits until the other end of its veth is gone too, which the kernel does some time later.
func (w *world) kill(host string) {
	w.t.Helper()
	peer := [2]string{"fabric", "n0"}
	if host != "node" {
		key := hostIfKey(w.mode, "azure", "id-"+host, "eth0", "default", host)
		peer = [2]string{"node", hostIfName(w.mode, key)}
	}
	w.run("ip", "netns", "del", w.name(host))
	for range 1000 {
		if exec.Command("ip", "-n", w.name(peer[0]), "link", "show", peer[1]).Run() != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatalf("%s in %s outlives namespace %s", peer[1], peer[0], host)
}

func (w *world) netns(host string) string {
	w.t.Helper()
	w.run("ip", "netns", "add", w.name(host))
	w.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", w.name(host)).Run() })
	return w.path(host)
}

// pod makes a pod's namespace.
func (w *world) pod(name string) string {
	w.t.Helper()
	w.pods = append(w.pods, name)
	return w.netns(name)
}

func (w *world) run(name string, args ...string) string {
	w.t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command(name, args...)
	// ip complains on standard error of namespaces below /run/netns that other tests take away while it looks for a link's peer there.
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		w.t.Fatalf("%s %s: %v: %s%s", name, strings.Join(args, " "), err, &out, &errs)
	}
	return out.String()
}

// in runs a command in a namespace.
func (w *world) in(host string, args ...string) string {
	w.t.Helper()
	return w.run("ip", append([]string{"netns", "exec", w.name(host)}, args...)...)
}

func (w *world) ping(from, to string, wantTTL int) {
	w.t.Helper()
	if out := w.in(from, "ping", "-n", "-c1", "-W3", to); !strings.Contains(out, fmt.Sprintf("ttl=%d ", wantTTL)) {
		w.t.Errorf("ping from %s to %s: want ttl=%d: %s", from, to, wantTTL, out)
	}
}

// firstIP returns the address that the first pod gets.
func (w *world) firstIP() string {
	if w.mode == modeKubenet {
		return "10.13.78.2"
	}
	return "10.13.76.5"
}

// hops returns the rest of a TTL between pods and the fabric: the node is a hop except where its bridge reaches both.
func (w *world) hops(ttl int) int {
	if w.mode == modeBridge {
		return ttl
	}
	return ttl - 1
}

func (w *world) conf(more map[string]any) []byte {
	change := map[string]any{"mode": string(w.mode), "stateDir": w.state}
	if w.mode == modeKubenet {
		change["ipam"] = map[string]any{"type": "host-local", "subnet": "10.13.78.0/24"}
	}
	for _, m := range []map[string]any{w.change, more} {
		for k, v := range m {
			change[k] = v
		}
	}
	return confJSON(w.t, change)
}

// call is one run of the plugin as the specification has it: environment, standard input, standard output, exit status.
type call struct {
	command, pod string
	conf         map[string]any
	env          map[string]string
}

// command prepares the plugin's process. It must be started in the node's namespace.
func (w *world) command(c call) *exec.Cmd {
	env := map[string]string{
		"CNI_COMMAND": c.command, "CNI_CONTAINERID": "id-" + c.pod, "CNI_NETNS": w.path(c.pod), "CNI_IFNAME": "eth0", "CNI_PATH": w.bin,
		"CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + c.pod + ";OTHER=1",
	}
	for k, v := range c.env {
		env[k] = v
	}
	cmd := exec.Command(filepath.Join(w.bin, pluginName))
	cmd.Env = []string{} // no PATH either
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = bytes.NewReader(w.conf(c.conf))
	return cmd
}

// output of the plugin, and its error object when it failed.
type output struct {
	data []byte
	err  *cniErr
}

type cniErr struct {
	Code    uint
	Msg     string
	Details string
}

func (w *world) call(c call) output {
	w.t.Helper()
	cmd := w.command(c)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	var runErr error
	w.inNode(func() { runErr = cmd.Run() })
	if runErr == nil {
		return output{data: out.Bytes()}
	}
	e := &cniErr{}
	if err := json.Unmarshal(out.Bytes(), e); err != nil || e.Msg == "" {
		w.t.Fatalf("%s: %v without an error object: %s%s", c.command, runErr, out.Bytes(), errOut.Bytes())
	}
	return output{err: e}
}

func (w *world) inNode(f func()) { w.inNS("node", f) }

// inNS runs f in one of the world's namespaces.
func (w *world) inNS(host string, f func()) {
	target, err := ns.GetNS(w.path(host))
	if err != nil {
		w.t.Error(err)
		return
	}
	defer target.Close()
	if err := target.Do(func(ns.NetNS) error { f(); return nil }); err != nil {
		w.t.Error(err)
	}
}

type addResult struct {
	CNIVersion string
	Interfaces []struct{ Name, Mac, Sandbox string }
	IPs        []struct {
		Address, Gateway string
		Interface        *int
	}
	Routes []struct{ Dst, GW string }
}

// add makes the pod's namespace if need be and joins it; it gives back the address.
func (w *world) add(pod string) string {
	w.t.Helper()
	if _, err := os.Stat(w.path(pod)); err != nil {
		w.pod(pod)
	}
	out := w.call(call{command: "ADD", pod: pod})
	if out.err != nil {
		w.t.Fatalf("ADD %s: %+v", pod, *out.err)
	}
	return w.parse(out)
}

func (w *world) parse(out output) string {
	w.t.Helper()
	var r addResult
	if err := json.Unmarshal(out.data, &r); err != nil || len(r.IPs) != 1 {
		w.t.Fatalf("result: %v: %s", err, out.data)
	}
	ip, _, err := net.ParseCIDR(r.IPs[0].Address)
	if err != nil {
		w.t.Fatal(err)
	}
	return ip.String()
}

func (w *world) must(c call) []byte {
	w.t.Helper()
	out := w.call(c)
	if out.err != nil {
		w.t.Fatalf("%s %s: %+v", c.command, c.pod, *out.err)
	}
	return out.data
}

// check runs CHECK with the ADD's result.
func (w *world) check(pod string, result []byte) *cniErr {
	w.t.Helper()
	return w.call(call{command: "CHECK", pod: pod, conf: map[string]any{"prevResult": json.RawMessage(result)}}).err
}

// carrier is what the kernel notices of a bridge's carrier in its own time, after its ports have come and gone.
var carrier = regexp.MustCompile(`NO-CARRIER,|,LOWER_UP| state [A-Z]+| linkdown`)

// dump returns everything that the plugin could leave behind, on the node and in pods.
func (w *world) dump() string {
	w.t.Helper()
	var b strings.Builder
	for _, host := range append([]string{"node"}, w.pods...) {
		fmt.Fprintf(&b, "== %s\n", host)
		for _, what := range [][]string{{"-o", "link"}, {"-o", "-4", "addr"}, {"-4", "route", "show", "table", "all"},
			{"-4", "neigh", "show", "nud", "permanent"}} {
			b.WriteString(carrier.ReplaceAllString(w.run("ip", append([]string{"-n", w.name(host)}, what...)...), ""))
		}
	}
	b.WriteString("== node's settings\n")
	b.WriteString(w.in("node", "cat", "/proc/sys/net/ipv4/ip_forward"))
	for line := range strings.Lines(w.in("node", "ebtables-nft-save")) {
		if strings.HasPrefix(line, "-A") {
			b.WriteString(line)
		}
	}
	var s state
	data, err := os.ReadFile(filepath.Join(w.state, "azure.json"))
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil && !os.IsNotExist(err) {
		w.t.Fatal(err)
	}
	fmt.Fprintf(&b, "== state: %v\n", s.Attachments)
	return b.String()
}
