package dump

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/conntrack"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestFailingPrograms checks that state which exists is read, or known to be unread, whichever program fails, in whatever way.
func TestFailingPrograms(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := ofTest(t)
	cmd := exec.Command("sh", "-ec", `ip link add br0 type bridge; ip link set br0 up; ip addr add 10.9.0.1/24 dev br0
		ip neigh add 10.9.0.9 lladdr 02:00:00:00:00:09 dev br0; ip rule add fwmark 7 table 77
		iptables-nft -t nat -A POSTROUTING -s 10.9.0.0/24 -j MASQUERADE; ip6tables-nft -A FORWARD -j DROP
		iptables-legacy -A FORWARD -j DROP; ebtables-nft -A FORWARD -p IPv4 -j ACCEPT
		ipset create pool hash:net; ipset add pool 10.9.0.0/24
		nft add table ip own '{ chain c { type filter hook forward priority 0; ip daddr 10.7.0.0/16 drop; }; }'
		conntrack -I -s 10.9.0.9 -d 10.9.0.1 -p tcp --sport 1 --dport 2 -t 600 --state ESTABLISHED`)
	cmd.Stderr = os.Stderr
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatal(err)
	}
	load := func(t *testing.T, d *Dumper) *snapshot.Host {
		raw, err := d.All(t.Context(), "node/a", ns)
		if err != nil {
			t.Fatal(err)
		}
		return capture.NewLoader("node/a").Load(raw)
	}
	whole := load(t, &Dumper{})
	if len(whole.Unread) > 0 {
		t.Fatalf("unread: %v", whole.Unread)
	}
	real := os.Getenv("PATH")
	programs := map[string][]snapshot.Part{
		"ip":     {snapshot.Links, snapshot.Addresses, snapshot.Routes, snapshot.Policy, snapshot.Neighbours},
		"bridge": {snapshot.FDB}, "nft": {snapshot.NFT}, "ipset": {snapshot.IPSets}, "conntrack": {snapshot.Flows},
		"iptables": {snapshot.Rules}, "ip6tables": {snapshot.RulesIPv6}, "ebtables": {snapshot.Bridge},
	}
	defer func(dirs []string) { programDirs = dirs }(programDirs)
	programDirs = nil
	for way, script := range map[string]string{
		"missing": "", "killed": "kill -SEGV $$", "refuses": "echo no >&2; exit 1", "hangs": "exec /bin/sleep 60", "prints too much": "exec /usr/bin/yes",
		"garbage": "echo Segmentation fault", "begins": "echo '[{'",
	} {
		for program, parts := range programs {
			t.Run(program+" "+way, func(t *testing.T) {
				dir := t.TempDir()
				for _, row := range capture.Dumps {
					for _, args := range row.Commands {
						path, err := exec.LookPath(args[0])
						name := filepath.Join(dir, args[0])
						if base, _, _ := strings.Cut(args[0], "-"); base == program {
							if script != "" {
								err = os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o755)
							}
						} else if _, there := os.Lstat(name); err == nil && there != nil {
							err = os.Symlink(path, name)
						}
						if err != nil {
							t.Fatal(err)
						}
					}
				}
				t.Setenv("PATH", dir)
				d := &Dumper{limit: time.Minute, maxOutput: 1 << 20}
				if way == "hangs" {
					d.limit = time.Second / 2 // the other programs' too, which a busy machine does not keep
				}
				host := load(t, d)
				t.Setenv("PATH", real)
				changed := snapshot.Changes(whole, host)
				for _, part := range parts {
					if host.Unread[part] == "" && !sameState(whole, host, part, changed) {
						t.Errorf("%s: neither read nor unread: %v, changed %v", part, host.Unread, changed)
					}
				}
				for part := range host.Unread {
					if why := host.Unread[part]; way == "killed" && !strings.Contains(why, "was killed by SIGSEGV; install a newer version") {
						t.Errorf("%s: %s", part, why)
					}
				}
			})
		}
	}
}

// sameState reports whether a part is the same in two states of a host.
func sameState(a, b *snapshot.Host, part snapshot.Part, changed []snapshot.Part) bool {
	switch part {
	case snapshot.Links:
		return len(a.FIB.Links) == len(b.FIB.Links)
	case snapshot.Neighbours:
		return len(a.FIB.Neighbours) == len(b.FIB.Neighbours)
	case snapshot.FDB:
		return len(a.FIB.FDB) == len(b.FIB.FDB)
	case snapshot.Flows:
		return tracked(a) == tracked(b)
	case snapshot.IPSets:
		return len(a.IPSets) == len(b.IPSets)
	case snapshot.NFT, snapshot.Rules, snapshot.RulesIPv6, snapshot.Bridge:
		return sameRules(a, b)
	}
	for _, c := range changed {
		if c == part {
			return false
		}
	}
	return true
}

// sameRules reports whether a host has the base chains of another, each with as many rules.
func sameRules(a, b *snapshot.Host) bool {
	for _, t := range a.Rules.Tables {
		for _, c := range t.Chains {
			found := false
			for _, u := range b.Rules.Tables {
				if d := u.Chain(c.Name); u.Family == t.Family && u.Name == t.Name && (d != nil && len(d.Rules) == len(c.Rules)) {
					found = true
				}
			}
			if !found && len(c.Rules) > 0 {
				return false
			}
		}
	}
	return true
}

// tracked returns the state of a packet of the connection that the test made.
func tracked(h *snapshot.Host) packet.TrackState {
	p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.TCP, Source: netip.MustParseAddr("10.9.0.9"), SourcePort: packet.Exactly(1),
		Destination: netip.MustParseAddr("10.9.0.1"), DestinationPort: packet.Exactly(2)}, TCPFlags: packet.ACK}
	conntrack.NewView(h.Flows, conntrack.Settings{}).Track(&p)
	return p.Track.State
}
