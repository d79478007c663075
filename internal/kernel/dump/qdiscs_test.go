package dump_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestQdiscs walks a packet out of a link with each qdisc or filter, and sends one. A walk names what may keep the packet back, and is not
// surer than the kernel. Elsewhere both deliver it.
func TestQdiscs(t *testing.T) {
	const filter = "protocol ip u32 match ip dst 10.9.0.2/32 flowid 1:1"
	const htb = "tc qdisc add dev eth0 root handle 1: htb default 0; tc class add dev eth0 parent 1: classid 1:1 htb rate 1mbit; "
	for name, c := range map[string]struct {
		commands string
		why      string // "" where the packet is delivered
		drops    bool
	}{
		"none":                     {"", "", false},
		"pfifo":                    {"tc qdisc add dev eth0 root handle 7: pfifo limit 1", "", false},
		"pfifo without room":       {"tc qdisc add dev eth0 root handle 7: pfifo limit 0", "qdisc pfifo 7: (root, limit 0)", true},
		"bfifo without room":       {"tc qdisc add dev eth0 root handle 7: bfifo limit 10", "qdisc bfifo 7: (root, limit 10)", true},
		"head drop":                {"tc qdisc add dev eth0 root handle 7: pfifo_head_drop limit 0", "qdisc pfifo_head_drop 7: (root, limit 0)", true},
		"blackhole":                {"tc qdisc add dev eth0 root handle 7: blackhole", "qdisc blackhole 7: (root)", true},
		"tbf":                      {"tc qdisc add dev eth0 root handle 7: tbf rate 1mbit burst 20 limit 9000", "qdisc tbf 7: (root)", true},
		"classes":                  {htb, "", false},
		"no room beside classes":   {"tc qdisc add dev eth0 root handle 1: htb direct_qlen 0", "qdisc htb 1: (root, direct_qlen 0)", true},
		"filter":                   {htb + "tc filter add dev eth0 parent 1: " + filter, "filter u32 (preference 49152, parent 1:) of qdisc htb 1:", false},
		"filter to a full leaf":    {htb + "tc qdisc add dev eth0 parent 1:1 handle 2: pfifo limit 0; tc filter add dev eth0 parent 1: " + filter, "filter u32 (preference 49152, parent 1:) of qdisc htb 1:", true},
		"filter to a plain leaf":   {htb + "tc qdisc add dev eth0 parent 1:1 handle 2: pfifo limit 9; tc filter add dev eth0 parent 1: pref 3 " + filter, "filter u32 (preference 3, parent 1:) of qdisc htb 1:", false},
		"leaf without room":        {htb + "tc qdisc add dev eth0 parent 1:1 handle 2: pfifo limit 0", "qdisc pfifo 2: (parent 1:1, limit 0)", false},
		"filter of a class":        {htb + "tc filter add dev eth0 parent 1:1 " + filter, "filter u32 (preference 49152, parent 1:1) of qdisc htb 1:", false},
		"clsact":                   {"tc qdisc add dev eth0 clsact; tc filter add dev eth0 egress " + filter + " action mirred egress redirect dev lo", "filter u32 (preference 49152, parent ffff:fff3) of qdisc clsact ffff:", true},
		"clsact for what comes in": {"tc qdisc add dev eth0 clsact; tc filter add dev eth0 ingress " + filter, "", false},
		"ingress":                  {"tc qdisc add dev eth0 ingress; tc filter add dev eth0 parent ffff: " + filter, "", false},
		"shared block":             {"tc qdisc add dev eth0 egress_block 5 clsact; tc filter add block 5 " + filter, "filter u32 (preference 49152, parent ffff:fff3) of qdisc clsact ffff:", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := netnstest.Pair(t)
			if err := send(t, a.Do, b.Do); err != nil { // which resolves the address
				t.Fatal(err)
			}
			cmd := exec.Command("sh", "-ec", c.commands)
			cmd.Stderr = os.Stderr
			if err := a.Do(cmd.Run); err != nil {
				t.Fatal(err)
			}
			origin := dump.Origin(t.Context(), map[string]string{"node/a": a.Path(), "node/b": b.Path()}, "")
			p := packet.Packet{}
			p.Tuple = packet.Tuple{Protocol: packet.UDP, Destination: netip.MustParseAddr("10.9.0.2"), DestinationPort: packet.Exactly(5300)}
			r, err := walk.Walk(capture.NewSource(origin), walk.Request{Host: "node/a", Packet: p, OneWay: true})
			if err != nil {
				t.Fatal(err)
			}
			kind := walk.Delivered
			if c.why != "" {
				kind = walk.Undecided
			}
			if end := r.Outcomes[0].End; len(r.Outcomes) != 1 || end.Kind != kind || !strings.Contains(end.Why, c.why) {
				t.Errorf("the walk ends %+v, want %v with %q", end, kind, c.why)
			}
			if err := send(t, a.Do, b.Do); (err != nil) != c.drops {
				t.Errorf("kernel: %v, want dropped %v", err, c.drops)
			}
		})
	}
}

// send sends a datagram from one host of a pair to the other, and returns an error if it does not arrive.
func send(t *testing.T, from, to func(func() error) error) error {
	t.Helper()
	var l net.PacketConn
	if err := to(func() (err error) { l, err = net.ListenPacket("udp4", "10.9.0.2:5300"); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	err := from(func() error {
		conn, err := net.Dial("udp4", "10.9.0.2:5300")
		if err == nil {
			_, err = conn.Write([]byte("x"))
			err = errors.Join(err, conn.Close())
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := l.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _, err = l.ReadFrom(make([]byte, 1))
	return err
}
