package dump

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
)

// Reading must load no module. The kernel has one loaded for whoever asks what is not there yet: a socket of NETLINK_NETFILTER for
// nfnetlink ("net-pf-16-proto-12", netlink_create), its messages for the part that they are for ("nfnetlink-subsys-10",
// nfnetlink_rcv_msg), one of NETLINK_XFRM for xfrm_user, socket diagnosis for that of a family and a protocol
// ("net-pf-16-proto-4-type-2", "…-2-6", net/core/sock_diag.c, net/ipv4/inet_diag.c), getsockopt for tables. rtnetlink asks for none. So
// nothing is asked of what is not there; there is nothing to be seen of it, either.

// needs are the modules that a program asks. iptables-nft-save asks nft_compat also about rules that have no extension, such as
// "-p tcp --dport 80" (nft_compatible_revision; nft_compat then loads the extension's module), ipset --version the kernel's protocol.
var needs = map[string][]string{
	"ip": nil, "bridge": nil,
	"nft":                   {"nf_tables"},
	"iptables-nft-save":     {"nf_tables", "nft_compat"},
	"ip6tables-nft-save":    {"nf_tables", "nft_compat"},
	"ebtables-nft-save":     {"nf_tables"},
	"iptables-legacy-save":  {"ip_tables"},
	"ip6tables-legacy-save": {"ip6_tables"},
	"ebtables-legacy-save":  {"ebtables"},
	"ipset":                 {"ip_set"},
	"conntrack":             {"nf_conntrack_netlink"},
}

// symbols are functions of the modules, by which they are found in the kernel's own list where no other tells what is built in.
var symbols = map[string]string{
	"nf_tables": "nft_register_chain_type", "nft_compat": "nft_match_select_ops", "ip_tables": "ipt_register_table",
	"ip6_tables": "ip6t_register_table", "ebtables": "ebt_register_table", "ip_set": "ip_set_type_register",
	"nf_conntrack_netlink": "ctnetlink_get_conntrack", "nfnetlink": "nfnetlink_subsys_register",
	"xfrm_user": "xfrm_user_rcv_msg", "inet_diag": "inet_diag_register", "tcp_diag": "tcp_diag_dump", "udp_diag": "udp_diag_dump",
}

// builtInReader returns the modules that are part of the kernel; an error where nothing tells.
type builtInReader func() (map[string]bool, error)

// modules tells which parts of the kernel that can be modules are there.
type modules struct {
	none    bool            // the kernel loads no module, whoever asks
	loaded  map[string]bool // and ready
	parts   string          // /sys/module: has some of those that are built in, too
	builtIn builtInReader

	asked sync.Once // for tables, of the namespace that this is read for
	empty bool
}

// noTables reports whether the programs of nf_tables would print nothing. Most namespaces are pods, which have no rules. It asks once.
func (m *modules) noTables(ctx context.Context, ns *netns.Namespace) bool {
	m.asked.Do(func() {
		some, err := ruleset.HasTables(ctx, ns)
		m.empty = err == nil && !some
	})
	return m.empty
}

// places are where a machine tells of its modules, for tests of other machines.
type places struct {
	proc, sys string
	roots     []string // in which /lib/modules/RELEASE may be
	release   string
}

// read finds what is loaded now. See proc_modules(5) and Documentation/kbuild/kbuild.rst of the kernel (modules.builtin).
func (p places) read(builtIn builtInReader) *modules {
	m := &modules{loaded: map[string]bool{}, parts: p.sys + "/module", builtIn: builtIn}
	text, err := os.ReadFile(p.proc + "/modules")
	if err != nil {
		m.none = errors.Is(err, fs.ErrNotExist) // a kernel without CONFIG_MODULES
		if !m.none {
			m.builtIn = func() (map[string]bool, error) { return nil, err }
		}
		return m
	}
	disabled, err := os.ReadFile(p.proc + "/sys/kernel/modules_disabled")
	m.none = err == nil && string(bytes.TrimSpace(disabled)) == "1"
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) >= 5 && fields[4] == "Live" {
			m.loaded[fields[0]] = true
		}
	}
	return m
}

// builtInReaders holds a builtInReader for each machine that this process has dumped, by its places.
var builtInReaders sync.Map

// builtInOnce returns a reader that reads once in this process: what is built in stays the same while the kernel runs.
func (p places) builtInOnce() builtInReader {
	reader, _ := builtInReaders.LoadOrStore(fmt.Sprintf("%+v", p), builtInReader(sync.OnceValues(p.builtIn)))
	return reader.(builtInReader)
}

// maxBuiltIn is far more than the list of what is built in has, in bytes.
const maxBuiltIn = 8 << 20

// builtIn reads the list that kernels are installed with, or where there is none the kernel's own of all its functions.
func (p places) builtIn() (map[string]bool, error) {
	all := map[string]bool{}
	for _, root := range p.roots {
		text, err := ReadIn(root, "lib/modules/"+p.release+"/modules.builtin", maxBuiltIn)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			name, _, _ := strings.Cut(path.Base(strings.TrimSpace(line)), ".ko")
			all[strings.ReplaceAll(name, "-", "_")] = true
		}
		return all, nil
	}
	f, err := os.Open(p.proc + "/kallsyms")
	if err != nil {
		return nil, fmt.Errorf("neither /lib/modules/%s/modules.builtin nor /proc/kallsyms can be read", p.release)
	}
	defer f.Close()
	of := map[string]string{}
	for module, symbol := range symbols {
		of[symbol] = module
	}
	lines := bufio.NewScanner(f)
	for lines.Scan() { // "ffffffff81f3a030 T nf_conntrack_in", and "\t[module]" behind it; there are 100,000 and more
		_, rest, _ := bytes.Cut(lines.Bytes(), []byte(" "))
		_, name, _ := bytes.Cut(rest, []byte(" "))
		if end := bytes.IndexAny(name, "\t."); end >= 0 { // what the compiler appends begins with a dot
			name = name[:end]
		}
		if module := of[string(name)]; module != "" {
			all[module] = true
		}
	}
	return all, lines.Err()
}

// firstMissing returns the first missing module, or "" if all are loaded, or asking loads none. The error says that this is unknown.
func (m *modules) firstMissing(names ...string) (string, error) {
	for _, name := range names {
		if m.none || m.loaded[name] || m.part(name) {
			continue
		}
		builtIn, err := m.builtIn()
		if err != nil {
			return name, fmt.Errorf("whether the kernel has %s is not known, and to ask might load it: %w", name, err)
		}
		if !builtIn[name] {
			return name, nil
		}
	}
	return "", nil
}

// has reports whether the kernel has a module, loaded or built in. The error says that this is unknown.
func (m *modules) has(name string) (bool, error) {
	if m.loaded[name] || m.part(name) {
		return true, nil
	}
	builtIn, err := m.builtIn()
	return builtIn[name], err
}

// part reports whether a module is built in and has parameters: one that is loaded has a state, too.
func (m *modules) part(name string) bool {
	if _, err := os.Stat(m.parts + "/" + name); err != nil {
		return false
	}
	_, err := os.Stat(m.parts + "/" + name + "/initstate")
	return errors.Is(err, fs.ErrNotExist)
}

// modules returns those of the machine, as they are now. What is built in is read once.
func (d *Dumper) modules() *modules {
	d.init()
	return d.at.read(d.builtIn)
}

// variant returns the name by which needs knows a program: for a plain "iptables-save" that to which its link leads, the variant of nf_tables
// ("xtables-nft-multi") or the legacy one.
func variant(root, file, name string) string {
	base, save := strings.CutSuffix(name, "-save")
	if _, known := needs[name]; known || !save {
		return name
	}
	kind := "-legacy-save"
	_ = openBeneath(cmp.Or(root, "/"), file, func(fd int) error {
		if to, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil && strings.Contains(path.Base(to), "nft") {
			kind = "-nft-save"
		}
		return nil
	})
	return base + kind
}
