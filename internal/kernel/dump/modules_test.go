package dump

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/kerneltest"
)

// machine makes the files of a machine by their paths; a "->" before a text makes a link.
func machine(t testing.TB, files map[string]string) places {
	t.Helper()
	dir := t.TempDir()
	for path, text := range files {
		path = filepath.Join(dir, path)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if to, link := strings.CutPrefix(text, "->"); link {
			err = errors.Join(err, os.Symlink(to, path))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return places{proc: dir + "/proc", sys: dir + "/sys", roots: []string{dir + "/host", dir}, release: "6.8.0"}
}

func TestModules(t *testing.T) {
	const (
		modules = "proc/modules"
		builtIn = "lib/modules/6.8.0/modules.builtin"
		loaded  = "nf_tables 311296 20 nft_compat, Live 0xffffffffc0a0f000\nip_set 53248 0 - Loading 0x0000000000000000\n"
		list    = "kernel/net/netfilter/nf_tables.ko\nkernel/net/ipv4/tcp-diag.ko\n"
		symbols = "0 T ip_set_type_register\n0 t nft_match_select_ops.llvm.77\n0 T xnft_register_chain_type\n0 t tcp_diag_dump\t[tcp_diag]\n"
	)
	type files map[string]string
	type ask []string
	for name, test := range map[string]struct {
		files   files
		ask     ask
		missing string
		err     bool
	}{
		"no modules at all":       {files{}, ask{"nf_tables", "nft_compat"}, "", false},
		"no more":                 {files{modules: "", "proc/sys/kernel/modules_disabled": "1\n"}, ask{"ip_set"}, "", false},
		"loaded":                  {files{modules: loaded}, ask{"nf_tables"}, "", false},
		"not ready":               {files{modules: loaded, builtIn: ""}, ask{"nf_tables", "ip_set"}, "ip_set", false},
		"built in":                {files{modules: "", builtIn: list}, ask{"nf_tables", "tcp_diag", "ip_set"}, "ip_set", false},
		"built in, of the host":   {files{modules: "", "host/" + builtIn: list, builtIn: ""}, ask{"nf_tables"}, "", false},
		"link in the host's root": {files{modules: "", "host/lib": "->/usr/lib", "host/usr/" + builtIn: list}, ask{"nf_tables"}, "", false},
		"of another kernel":       {files{modules: "", "lib/modules/5.4.0/modules.builtin": list}, ask{"nf_tables"}, "nf_tables", true},
		"part with parameters":    {files{modules: "", "sys/module/ip_set/parameters/max_sets": "0\n"}, ask{"ip_set"}, "", false},
		"module with parameters":  {files{modules: "", builtIn: "", "sys/module/ip_set/initstate": "going\n"}, ask{"ip_set"}, "ip_set", false},
		"by the kernel's functions": {files{modules: "", "proc/kallsyms": symbols},
			ask{"ip_set", "nft_compat", "tcp_diag", "nf_tables"}, "nf_tables", false},
		"nothing tells":  {files{modules: ""}, ask{"ip_set"}, "ip_set", true},
		"nothing needed": {files{modules: ""}, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			at := machine(t, test.files)
			missing, err := at.read(at.builtIn).firstMissing(test.ask...)
			if missing != test.missing || (err != nil) != test.err {
				t.Errorf("%q is missing, error %v; want %q, an error %v", missing, err, test.missing, test.err)
			}
		})
	}
}

// TestBuiltInOnce reads once what is built in, which takes long where only the kernel's functions tell it, and what is loaded each time.
func TestBuiltInOnce(t *testing.T) {
	at := machine(t, map[string]string{"proc/modules": "", "proc/kallsyms": "0 T ip_set_type_register\n"})
	for _, loaded := range []string{"", "nf_tables 311296 20 nft_compat, Live 0xffffffffc0a0f000\n"} {
		if err := os.WriteFile(at.proc+"/modules", []byte(loaded), 0o644); err != nil {
			t.Fatal(err)
		}
		d := Dumper{at: at}
		for name, want := range map[string]bool{"ip_set": true, "nf_tables": loaded != ""} {
			if has, err := d.modules().has(name); err != nil || has != want {
				t.Errorf("has %s: %t, %v; want %t", name, has, err, want)
			}
		}
		if err := os.WriteFile(at.proc+"/kallsyms", nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNeeds: of every program of the table it is known what it asks of the kernel, and each such part can be found in every way.
func TestNeeds(t *testing.T) {
	for _, row := range capture.Dumps {
		for _, args := range row.Commands {
			if _, known := needs[variant("", "", args[0])]; !known {
				t.Errorf("%s: what %s asks of the kernel is not known", row.File, args[0])
			}
		}
	}
	for program, modules := range needs {
		for _, m := range modules {
			if symbols[m] == "" {
				t.Errorf("%s needs %s, of which no function is known", program, m)
			}
		}
	}
}

func TestVariant(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"usr/sbin", "etc/alternatives"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{"xtables-nft-multi", "xtables-legacy-multi"} {
		if err := os.WriteFile(filepath.Join(root, "usr/sbin", file), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, at string) {
		if err := os.Symlink(to, filepath.Join(root, at)); err != nil {
			t.Fatal(err)
		}
	}
	link("/etc/alternatives/iptables-save", "usr/sbin/iptables-save")
	link("/usr/sbin/xtables-nft-multi", "etc/alternatives/iptables-save")
	link("xtables-legacy-multi", "usr/sbin/ip6tables-save")
	for name, want := range map[string]string{
		"iptables-save": "iptables-nft-save", "ip6tables-save": "ip6tables-legacy-save", "iptables-nft-save": "iptables-nft-save", "nft": "nft",
	} {
		if got := variant(root, "/usr/sbin/"+name, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// bare is a kernel into which nothing is loaded that could be.
var bare = map[string]string{"proc/modules": "", "lib/modules/6.8.0/modules.builtin": ""}

// TestDumpLoadsNothing: where the kernel's parts are not there, none is asked, nothing is missing, and sockets are the same as those that
// socket diagnosis tells.
func TestDumpLoadsNothing(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := ofTest(t)
	listen(t, ns)
	full, err := (&Dumper{}).All(t.Context(), "node/a", ns)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := (&Dumper{at: machine(t, bare)}).All(t.Context(), "node/a", ns)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range capture.Dumps {
		out := raw.Outputs[row.File]
		asks := len(row.Commands) > 0 && len(needs[row.Commands[0][0]]) > 0 && row.Part != snapshot.Flows ||
			row.File == capture.IPsecFile
		if asks != (out.Skipped != "") || out.Error != "" {
			t.Errorf("%s: %+v", row.File, out)
		}
	}
	want, got := capture.NewLoader("node/a").Load(full), capture.NewLoader("node/a").Load(raw)
	if len(got.Unread) > 0 {
		t.Errorf("missing: %v", got.Unread)
	}
	if len(want.Listeners) < 8 || !reflect.DeepEqual(got.Listeners, want.Listeners) {
		t.Errorf("sockets by file:\n%+v\nby diagnosis:\n%+v", got.Listeners, want.Listeners)
	}
	unknown := machine(t, map[string]string{"proc/modules": ""})
	if raw, err = (&Dumper{at: unknown}).All(t.Context(), "node/a", ns); err != nil {
		t.Fatal(err)
	}
	for _, part := range []snapshot.Part{snapshot.Rules, snapshot.NFT, snapshot.IPSets, snapshot.Bridge} {
		if got := capture.NewLoader("node/a").Load(raw).Unread[part]; !strings.Contains(got, "is not known") {
			t.Errorf("%s is missing for %q", part, got)
		}
	}
	if told := (&Dumper{at: machine(t, bare)}).Versions(t.Context()); len(told) != 1 || told["ip"] == "" {
		t.Errorf("versions %v", told)
	}
}

// listen makes a socket of every kind in the namespace.
func listen(t *testing.T, ns *netns.Namespace) {
	t.Helper()
	set := func(level, name int) func(string, string, syscall.RawConn) error {
		return func(_, _ string, c syscall.RawConn) (err error) {
			if err2 := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, name, 1) }); err2 != nil {
				return err2
			}
			return err
		}
	}
	for _, s := range []struct {
		network, address string
		control          func(string, string, syscall.RawConn) error
	}{
		{"tcp4", "127.0.0.1:80", nil}, {"tcp4", "0.0.0.0:81", set(unix.SOL_IP, unix.IP_TRANSPARENT)},
		{"tcp", "[::]:82", nil}, {"tcp6", "[::]:83", nil}, {"tcp6", "[::1]:84", set(unix.SOL_IPV6, unix.IPV6_TRANSPARENT)},
		{"udp4", "127.0.0.1:53", nil}, {"udp", "[::]:54", nil}, {"udp6", "[::]:55", nil},
	} {
		config := net.ListenConfig{Control: s.control}
		err := ns.Do(func() error {
			if strings.HasPrefix(s.network, "udp") {
				c, err := config.ListenPacket(t.Context(), s.network, s.address)
				if err == nil {
					t.Cleanup(func() { c.Close() })
				}
				return err
			}
			l, err := config.Listen(t.Context(), s.network, s.address)
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func ofTest(t *testing.T) *netns.Namespace {
	t.Helper()
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Remove() })
	return ns
}

// TestFlowsByFile: connections are the same in conntrack's text and in the kernel's file.
func TestFlowsByFile(t *testing.T) {
	kerneltest.NeedRoot(t)
	if _, err := os.Stat(flowsFile); err != nil {
		t.Skip("the kernel has no such file")
	}
	ns := ofTest(t)
	if err := ruleset.ApplyNFT(t.Context(), ns, "table ip t { chain c { type filter hook output priority 0; ct state new accept; }; }"); err != nil {
		t.Fatal(err)
	}
	c, err := ns.Dial(t.Context(), "udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var flows [][]string
	for _, d := range []*Dumper{{}, {at: machine(t, bare)}} {
		raw, err := d.Parts(t.Context(), "node/a", ns, snapshot.Flows)
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, f := range capture.NewLoader("node/a").Load(raw).Flows.Flows {
			texts = append(texts, fmt.Sprint(f.Original, f.Reply, f.Status))
		}
		flows = append(flows, texts)
	}
	if len(flows[0]) != 1 || !slices.Equal(flows[0], flows[1]) {
		t.Errorf("by conntrack: %v\nby the file: %v", flows[0], flows[1])
	}
}

// TestBrokenPrograms: where the machine's own programs do not start, this process's are run; links of theirs do not lead out of its root.
func TestBrokenPrograms(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := ofTest(t)
	if err := ruleset.ApplyNFT(t.Context(), ns, "table ip own { chain c { }; }"); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := errors.Join(os.MkdirAll(root+"/usr/sbin", 0o755), os.Mkdir(root+"/bin", 0o755)); err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile("/bin/true") // linked with what the root does not have
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		os.WriteFile(root+"/usr/sbin/nft", []byte("#!/bin/nowhere\n"), 0o755),
		os.WriteFile(root+"/usr/sbin/ip", shell, 0o755),
		os.WriteFile(root+"/usr/sbin/ipset", []byte("not for this machine"), 0o755),
		os.WriteFile(root+"/usr/sbin/iptables-nft-save", nil, 0o644),
		os.Symlink("/usr/sbin/ebtables-nft-save", root+"/usr/sbin/ebtables-nft-save"),
		os.Symlink("../../../../../../../usr/sbin/ip6tables-nft-save", root+"/usr/sbin/ip6tables-nft-save"),
	)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := (&Dumper{Root: root}).All(t.Context(), "node/a", ns)
	if err != nil {
		t.Fatal(err)
	}
	h := capture.NewLoader("node/a").Load(raw)
	if len(h.Unread) > 0 || h.Rules.Table(netfilter.IPv4, "own") == nil || len(h.FIB.Links) == 0 {
		t.Errorf("missing %v; %d links; rules %+v", h.Unread, len(h.FIB.Links), h.Rules)
	}
	for name, want := range map[string]string{"ebtables-nft-save": "", "ip6tables-nft-save": "", "nft": "/usr/sbin/nft", "nowhere": ""} {
		if got := find(root, name); got != want {
			t.Errorf("%s is found at %q, want %q", name, got, want)
		}
	}
}

func TestParseSocketFile(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	const rest = " 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n"
	sockets, err := parseSocketFile(head + "   0: 0100007F:0050 00000000:0000 0A" + rest +
		"   1: B80D0120000000000000000001000000:0035 00000000000000000000000000000000:0000 07" + rest)
	want := []socketFile{{netip.MustParseAddrPort("127.0.0.1:80"), 10, 4711}, {netip.MustParseAddrPort("[2001:db8::1]:53"), 7, 4711}}
	if err != nil || !slices.Equal(sockets, want) {
		t.Errorf("sockets %v, error %v", sockets, err)
	}
	for _, line := range []string{"0: 0100007F:0050", "0: 01007F:0050 0 0A" + rest, "0: 0100007F 0 0A" + rest, "0: 0100007F:50000 0 0A" + rest} {
		if _, err := parseSocketFile(head + line); err == nil {
			t.Errorf("no error of %q", line)
		}
	}
}

func FuzzParseSocketFile(f *testing.F) {
	f.Add("sl\n0: 0100007F:0050 00000000:0000 0A 0:0 00:0 0 0 0 4711 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		sockets, err := parseSocketFile(text)
		if err == nil && strings.Count(text, "\n") > 1 && len(sockets) == 0 {
			t.Error("lines without sockets, and no error")
		}
	})
}
