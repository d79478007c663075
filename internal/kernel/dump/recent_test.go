package dump

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestRecent checks that a walk through rules of "-m recent" ends as the kernel's packet does, packet after packet, and that it is undecided
// without the kernel's lists.
func TestRecent(t *testing.T) {
	kerneltest.NeedRoot(t)
	for name, c := range map[string]struct {
		rules string        // of INPUT, for UDP to port 9
		pause time.Duration // before the last packet
		want  string        // "+" delivered, "-" dropped
	}{
		"note and check":    {"-m recent --name S --rcheck -j DROP; -m recent --name S --set", 0, "+--"},
		"count":             {"-m recent --name S --set; -m recent --name S --rcheck --seconds 60 --hitcount 3 -j DROP", 0, "++--"},
		"update":            {"-m recent --name S --update --seconds 600 --hitcount 3 -j DROP; -m recent --name S --set", 0, "+++--"},
		"time":              {"-m recent --name S --rcheck --seconds 30 --reap -j DROP; -m recent --name S --set", 33 * time.Second, "+-+"},
		"remove":            {"-m recent --name S --remove -j DROP; -m recent --name S --set", 0, "+-+-"},
		"not":               {"-m recent --name S ! --rcheck -j ACCEPT; -j DROP", 0, "++"},
		"never matches":     {"-m recent --name S ! --set -j DROP; -m recent --name S --rcheck --hitcount 2 -j DROP", 0, "+-"},
		"set before a test": {"-m recent --name S --set -m mark --mark 7 -j DROP; -m recent --name S --rcheck --hitcount 2 -j DROP", 0, "+-"},
		"test before a set": {"-m mark --mark 7 -m recent --name S --set -j DROP; -m recent --name S --rcheck --hitcount 1 -j DROP", 0, "++"},
		"destination":       {"-m recent --name S --rcheck --rsource -j DROP; -m recent --name S --set --rdest", 0, "+-"},
		"mask":              {"-m recent --name S --mask 255.0.0.0 --rcheck -j DROP; -m recent --name S --mask 255.0.0.0 --set", 0, "+-"},
		"another list":      {"-m recent --name T --rcheck -j DROP; -m recent --name S --set", 0, "++"},
	} {
		for _, program := range []string{"iptables-nft", "iptables-legacy", "ip6tables-nft"} {
			ipv6 := strings.HasPrefix(program, "ip6")
			if program != "iptables-nft" && name != "update" && name != "time" {
				continue
			}
			t.Run(name+" "+program, func(t *testing.T) {
				t.Parallel()
				ns := ofTest(t)
				script := "ip link set lo up"
				for rule := range strings.SplitSeq(c.rules, "; ") {
					script += fmt.Sprintf("; %s -A INPUT -p udp --dport 9 %s", program, rule)
				}
				cmd := exec.Command("sh", "-ec", script)
				cmd.Stderr = os.Stderr
				if err := ns.Do(cmd.Run); err != nil {
					t.Fatal(err)
				}
				end := netip.MustParseAddrPort("127.0.0.1:9")
				if ipv6 {
					end = netip.MustParseAddrPort("[::1]:9")
				}
				var receiver, sender *net.UDPConn
				if err := ns.Do(func() (err error) {
					if receiver, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(end)); err != nil {
						return err
					}
					sender, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(end))
					return err
				}); err != nil {
					t.Fatal(err)
				}
				defer receiver.Close()
				defer sender.Close()
				predict := func(tamper func(*capture.Raw)) *walk.Result {
					raw, err := new(Dumper).All(t.Context(), "node/a", ns)
					if err != nil {
						t.Fatal(err)
					}
					tamper(raw)
					p := packet.Packet{Tuple: packet.Tuple{Protocol: packet.UDP, Destination: end.Addr(), DestinationPort: packet.Exactly(9),
						Source: end.Addr(), SourcePort: packet.Exactly(sender.LocalAddr().(*net.UDPAddr).AddrPort().Port())}}
					r, err := walk.Walk(capture.NewSource(capture.OriginOf([]*capture.Raw{raw}, nil)), walk.Request{Host: "node/a", Packet: p, OneWay: true})
					if err != nil {
						t.Fatal(err)
					}
					return r
				}
				got, predicted := "", ""
				for i := range c.want {
					if i == len(c.want)-1 {
						time.Sleep(c.pause)
					}
					r := predict(func(*capture.Raw) {})
					if len(r.Outcomes) != 1 {
						t.Fatalf("packet %d: %d outcomes: %+v", i, len(r.Outcomes), r.Outcomes[0].Choices)
					}
					predicted += map[walk.EndKind]string{walk.Delivered: "+", walk.Dropped: "-"}[r.Outcomes[0].End.Kind]
					if _, err := sender.Write([]byte{byte(i)}); err != nil && !strings.Contains(err.Error(), "operation not permitted") {
						t.Fatal(err)
					}
					patience := 50 * time.Millisecond
					if c.want[i] == '+' {
						patience = 10 * time.Second
					}
					_ = receiver.SetReadDeadline(time.Now().Add(patience))
					if n, _ := receiver.Read(make([]byte, 9)); n == 1 {
						got += "+"
					} else {
						got += "-"
					}
				}
				if got != c.want || predicted != got {
					t.Errorf("the kernel's packets went %s, the walks' %s; want %s", got, predicted, c.want)
				}
				unread := predict(func(raw *capture.Raw) { raw.Outputs[capture.RecentFile] = capture.Output{Error: "permission denied"} })
				old := predict(func(raw *capture.Raw) { delete(raw.Outputs, capture.RecentFile) })
				if len(unread.Outcomes) < 2 && strings.Contains(c.rules, "check") && name != "never matches" || len(unread.Outcomes) != len(old.Outcomes) {
					t.Errorf("without the lists, %d outcomes; from an old capture %d", len(unread.Outcomes), len(old.Outcomes))
				}
			})
		}
	}
}

// FuzzRecent: a list in any text is read or refused, and what is read is no younger than now.
func FuzzRecent(f *testing.F) {
	f.Add("src=10.0.0.1 ttl: 64 last_seen: 4295504254 oldest_pkt: 2 4295504250, 4295504254\n")
	f.Add("src=2001:0db8:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: 1 oldest_pkt: 1 1\n")
	f.Add("src=10.0.0.1 ttl: 64 last_seen: 18446744073709551615 oldest_pkt: 1 9223372036854775807\n")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseRecent(text, jiffies{4295552524, 250})
		for _, e := range list {
			if err != nil || !e.Address.IsValid() {
				t.Errorf("%+v, %v", e, err)
			}
			for _, ms := range e.Seen {
				if ms < 0 {
					t.Errorf("noted %d ms ago", ms)
				}
			}
		}
	})
}

// TestClock checks that the kernel's clock gives how many ticks a second has.
func TestClock(t *testing.T) {
	for text, want := range map[string]jiffies{
		"Timer List Version: v0.10\nnow at 2626401849755 nsecs\n\njiffies: 4295548896\n": {4295548896, 250},
		"now at 2626401849755 nsecs\njiffies: 4297293697\n":                              {4297293697, 1000},
		"now at 300000000000 nsecs\njiffies: 4294967296\n":                               {},
		"now at x nsecs\n": {},
		"":                 {},
	} {
		got, err := parseClock(text)
		if got != want || (err != nil) != (want == jiffies{}) {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
}
