package dump

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestNFTFails checks that a walk is undecided where the packet meets a rule that nft cannot show, names the cause, and goes its way where
// it meets none. Rules of iptables-nft are known from iptables-save.
func TestNFTFails(t *testing.T) {
	kerneltest.NeedRoot(t)
	const own = `nft add table ip own '{ chain more { drop; }; chain c { type filter hook input priority 10; counter; jump more; }; }'; `
	for name, c := range map[string]struct{ rules, kind, why string }{
		"a rule that matches": {`nft add table ip own '{ chain c { type filter hook input priority 0; tcp dport 80 drop; }; }'`,
			"unknown", "what own c 1 does is unknown: the rule could not be read: nft was killed by SIGSEGV; install a newer version"},
		"a rule that translates": {`nft add table ip own '{ chain c { type nat hook output priority -100; tcp dport 80 redirect to :81; }; }'`,
			"unknown", "what own c 1 does is unknown: the rule could not be read: nft was killed by SIGSEGV; install a newer version"},
		"a verdict":         {own, "dropped", "own more 1"},
		"a dormant table":   {own + `nft add table ip own '{ flags dormant; }'`, "delivered", ""},
		"another hook":      {`nft add table ip own '{ chain c { type filter hook forward priority 0; tcp dport 80 drop; }; }'`, "delivered", ""},
		"another family":    {`nft add table ip6 own '{ chain c { type filter hook input priority 0; tcp dport 80 drop; }; }'`, "delivered", ""},
		"rules of iptables": {`iptables-nft -A INPUT -p tcp -m tcp --dport 80 -j DROP`, "dropped", "filter INPUT 1"},
		"a policy":          {`nft add table ip own '{ chain c { type filter hook input priority 0; policy drop; }; }'`, "dropped", "own c"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := ofTest(t)
			cmd := exec.Command("sh", "-ec", "ip link set lo up; "+c.rules)
			cmd.Stderr = os.Stderr
			if err := ns.Do(cmd.Run); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			if err := os.WriteFile(dir+"/nft", []byte("#!/bin/sh\nkill -SEGV $$\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			raw, err := new(Dumper).All(t.Context(), "node/a", ns)
			if err != nil {
				t.Fatal(err)
			}
			source := capture.NewSource(capture.OriginOf([]*capture.Raw{raw}, nil))
			host, err := source.Host("node/a")
			if err != nil || len(host.Unread) > 0 {
				t.Fatalf("%v, unread %v", err, host.Unread)
			}
			lo := netip.MustParseAddr("127.0.0.1")
			p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Source: lo, SourcePort: packet.Exactly(1), Destination: lo,
				DestinationPort: packet.Exactly(80)}, TCPFlags: packet.SYN}
			r, err := walk.Walk(source, walk.Request{Host: "node/a", Packet: p, OneWay: true})
			if err != nil {
				t.Fatal(err)
			}
			if e := r.Outcomes[0].End; len(r.Outcomes) != 1 || string(e.Kind) != c.kind || !strings.Contains(e.Why, c.why) {
				t.Errorf("%d outcomes, %s: %s", len(r.Outcomes), e.Kind, e.Why)
			}
		})
	}
}

// TestNFTOmits checks that a rule stays unread from which nft leaves out a match that it does not know, with exit status 0.
func TestNFTOmits(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := ofTest(t)
	nft := ruleset.NFTables{NetNS: ns.FD()}
	defer nft.Close()
	const key, register = 1, 2 // NFTA_TUNNEL_KEY, NFTA_TUNNEL_DREG
	own := nf.Table{Family: unix.NFPROTO_NETDEV, Name: "own"}
	chain := &nf.Chain{Name: "c", Rules: []nf.Rule{{Exprs: []nf.Expr{
		{Name: "tunnel", Data: nf.Attrs{{Kind: key, Value: uint32(1)}, {Kind: register, Value: uint32(unix.NFT_REG32_00)}}},
		nf.Compare(unix.NFT_CMP_EQ, 0, nf.Native(10)), nf.Verdict(nf.Drop, ""),
	}}}}
	err := nft.Commit(t.Context(), append([]netlink.Message{own.Make(), own.MakeChain(chain)}, own.AddRules(chain)...), 0)
	if errors.Is(err, unix.ENOENT) {
		kerneltest.Missing(t, "nf_tables' expression tunnel")
	}
	if err != nil {
		t.Fatal(err)
	}
	const omits = "the rule could not be read: nft does not know all expressions; install a newer version"
	if got := firstRule(t, new(Dumper), ns, "c"); !strings.Contains(got, omits) && !strings.Contains(got, "tunnel") {
		t.Errorf("the rule is %q", got)
	}
}

// firstRule returns the statements of the only rule of a chain, as a dump has them.
func firstRule(t *testing.T, d *Dumper, ns *netns.Namespace, name string) (statements string) {
	t.Helper()
	raw, err := d.All(t.Context(), "node/a", ns)
	if err != nil {
		t.Fatal(err)
	}
	host := capture.NewLoader("node/a").Load(raw)
	for _, table := range host.Rules.Tables {
		if chain := table.Chain(name); chain != nil && len(chain.Rules) == 1 {
			for _, s := range chain.Rules[0].Statements {
				statements += fmt.Sprint(s)
			}
		}
	}
	return statements
}

// TestUnreadNames checks that what could not be read names nft, however nft fails, and that a spare nft is asked.
func TestUnreadNames(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := ofTest(t)
	cmd := exec.Command("nft", "add table ip own { chain c { type filter hook input priority 0; tcp dport 80 drop; }; }")
	cmd.Stderr = os.Stderr
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatal(err)
	}
	path := os.Getenv("PATH")
	for script, want := range map[string]string{
		"kill -SEGV $$":       "nft was killed by SIGSEGV; install a newer version on this machine",
		"echo no >&2; exit 4": "nft: exit status 4",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/nft", []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		t.Setenv("PATH", dir+":"+path)
		if got := firstRule(t, new(Dumper), ns, "c"); !strings.Contains(got, "the rule could not be read: "+want) {
			t.Errorf("%s: %q", script, got)
		}
		empty := t.TempDir() // a node without nft: the image's is asked
		if got := firstRule(t, &Dumper{Root: empty}, ns, "c"); !strings.Contains(got, strings.Replace(want, "on this machine", "in packetwalk's image", 1)) {
			t.Errorf("%s, in an image: %q", script, got)
		}
		if got := firstRule(t, &Dumper{Spare: "/"}, ns, "c"); !strings.HasSuffix(got, "drop") || strings.Contains(got, "read") {
			t.Errorf("%s: the spare nft shows %q", script, got)
		}
	}
}
