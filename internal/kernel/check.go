package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
)

// Missing is something of the machine that packetwalk needs and that is not there.
type Missing struct {
	Feature string // "br_netfilter"
	Why     string // what it is needed for, and the kernel's words
	Remedy  string // a command or what to do
}

// String is one line.
func (m Missing) String() string { return fmt.Sprintf("%s: %s; %s", m.Feature, m.Why, m.Remedy) }

// Check tries what packetwalk needs of the machine, in a network namespace of its own that is gone afterwards, and returns what is
// missing. Trying, rather than looking at lists of modules, also loads the modules that the kernel loads by itself.
func Check(ctx context.Context) []Missing {
	if os.Geteuid() != 0 {
		return []Missing{{"root", "network namespaces need CAP_SYS_ADMIN and CAP_NET_ADMIN", "run it with sudo"}}
	}
	var missing []Missing
	add := func(m Missing, err error) {
		if err != nil {
			m.Why += ": " + strings.Join(strings.Fields(err.Error()), " ")
			missing = append(missing, m)
		}
	}
	for _, name := range []string{"nft", "iptables-restore", "ebtables", "ipset", "ip"} {
		_, err := exec.LookPath(name)
		add(Missing{name, "the program is not on the PATH", "apt-get install " + program.Package(name)}, err)
	}
	add(Missing{"overlay", "containers' root file systems are overlays", "modprobe overlay"}, tryOverlay())
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		ns, err := OpenNamespace("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close()
		for _, f := range features {
			add(f.missing, f.try(ctx, ns))
		}
		return nil
	})
	add(Missing{"netns", "every host of a lab is a network namespace",
		"use a kernel with CONFIG_NET_NS, and a container with the right to make them"}, err)
	return missing
}

// feature is something of the kernel, and what needs it: a call, or what a program takes on its standard input.
type feature struct {
	missing Missing
	call    func() error
	input   string
	program []string
}

// features are tried in a new namespace, which the thread is in, each after those before it.
var features = []feature{
	{missing: Missing{"veth", "hosts are joined by veth pairs", "modprobe veth"}, call: func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "check0"}, PeerName: "check1"})
	}},
	{missing: Missing{"bridge", "the azure CNI plugin joins pods by a bridge", "modprobe bridge"}, call: func() error {
		return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "check2"}})
	}},
	{
		missing: Missing{"br_netfilter", "services on the pods' own bridge need iptables to see bridged packets", "modprobe br_netfilter"},
		call: func() error {
			_, err := os.Stat("/proc/sys/net/bridge/bridge-nf-call-iptables")
			return err
		},
	},
	{
		missing: Missing{"nf_tables", "the fabric translates addresses with nftables", "modprobe nf_tables nft_chain_nat nft_hash nft_numgen"},
		program: []string{"nft", "-f", "-"}, input: `table ip check {
			map m { type ipv4_addr : interval ipv4_addr . inet_service
				elements = { 10.0.0.1 : 10.0.0.2 . 1024-2047 }
			}
			chain pre { type filter hook prerouting priority mangle
				ct state new ct mark set jhash ip saddr . th sport mod 2 seed 1 map { 0 : 1, 1 : 2 }
				meta nftrace set 0
			}
			chain raw { type filter hook prerouting priority raw
				notrack
			}
			chain post { type nat hook postrouting priority srcnat
				meta l4proto tcp numgen random mod 2 == 0 snat ip to ip saddr map @m
			}
		}
		`,
	},
	{
		missing: Missing{"ipset", "Calico's pools are IP sets", "modprobe ip_set ip_set_hash_net"},
		program: []string{"ipset", "restore"}, input: "create check hash:net\n",
	},
	{
		missing: Missing{"xtables", "the nodes' rules are iptables rules",
			"modprobe -a nft_compat xt_comment xt_statistic xt_addrtype xt_iprange xt_mark " +
				"xt_MASQUERADE xt_HL xt_set xt_conntrack xt_nat xt_recent"},
		program: []string{"iptables-restore", "--wait=5"}, input: `*mangle
-A PREROUTING -j TTL --ttl-inc 1
COMMIT
*nat
-A PREROUTING -m comment --comment c -m statistic --mode random --probability 0.5
-A PREROUTING -m addrtype --dst-type LOCAL -p tcp -j DNAT --to-destination 10.0.0.1:80
-A POSTROUTING -m iprange --dst-range 10.0.0.1-10.0.0.2 -m mark --mark 0x4000/0x4000
-A POSTROUTING -m set --match-set check src -j MASQUERADE --random-fully
-A OUTPUT -m recent --set --name check -j MARK --or-mark 0x4000
COMMIT
*filter
-A FORWARD -m conntrack --ctstate NEW -j REJECT
COMMIT
`,
	},
	{
		missing: Missing{"ebtables", "the azure CNI plugin's bridge mode rewrites link-layer addresses",
			"modprobe -a ebt_snat ebt_dnat ebt_arpreply"},
		program: []string{"ebtables-restore"}, input: `*nat
:PREROUTING ACCEPT
-A PREROUTING -p ARP --arp-op Request --arp-ip-dst 10.0.0.1 -j arpreply --arpreply-mac 00:0d:3a:00:00:01 --arpreply-target DROP
`,
	},
}

// try tells what is missing. A program that is not there is another finding.
func (f *feature) try(ctx context.Context, ns *Namespace) error {
	if f.call != nil {
		return f.call()
	}
	if _, err := ns.command(ctx, f.input, f.program[0], f.program[1:]...); !errors.Is(err, exec.ErrNotFound) {
		return err
	}
	return nil
}

// tryOverlay tells an unknown file system (ENODEV) from one that is there and wants options.
func tryOverlay() error {
	dir, err := os.MkdirTemp("", "packetwalk-check")
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	err = unix.Mount("overlay", filepath.Clean(dir), "overlay", 0, "")
	if err == nil {
		return unix.Unmount(dir, unix.MNT_DETACH)
	}
	if errors.Is(err, unix.ENODEV) {
		return err
	}
	return nil
}
