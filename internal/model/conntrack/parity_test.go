package conntrack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/testing/kerneltest"
)

// namespace makes a network namespace of the test's own and returns what runs a command in it.
func namespace(t *testing.T) func(command ...string) string {
	t.Helper()
	kerneltest.NeedRoot(t)
	name := fmt.Sprintf("pwct%d", os.Getpid())
	if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
		t.Fatalf("ip netns add: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
	return func(command ...string) string {
		t.Helper()
		var errs bytes.Buffer
		c := exec.Command("ip", append([]string{"netns", "exec", name}, command...)...)
		c.Stderr = &errs
		out, err := c.Output()
		if err != nil {
			t.Fatalf("%v: %v: %s", command, err, errs.Bytes())
		}
		return string(out)
	}
}

// TestConntrackTool: what conntrack(8) lists is read, and printed back as it stands there.
func TestConntrackTool(t *testing.T) {
	in := namespace(t)
	add := func(args string) { in(append([]string{"conntrack", "-I"}, strings.Fields(args)...)...) }
	add("-p tcp -s 10.0.0.1 -d 10.0.0.2 --sport 1 --dport 2 --state SYN_SENT -t 100 -m 5 -u SEEN_REPLY,ASSURED --zone 3")
	add("-p tcp -s 10.0.0.1 -d 10.0.0.2 --sport 4 --dport 2 --state ESTABLISHED -t 1000 -u SEEN_REPLY,ASSURED -r 10.1.0.1 -q 10.0.0.9 --reply-port-src 8080 --reply-port-dst 40000")
	add("-p udp -s 10.0.0.1 -d 10.0.0.3 --sport 1 --dport 2 -t 100 -g 1.2.3.4 --orig-zone 4")
	add("-p udp -s fd00::1 -d fd00::3 --sport 1 --dport 2 -t 100 --reply-zone 5")
	add("-p icmp -s 10.0.0.1 -d 10.0.0.3 --icmp-type 8 --icmp-code 0 --icmp-id 9 -t 100")
	add("-p icmpv6 -s fd00::1 -d fd00::2 --icmpv6-type 128 --icmpv6-code 0 --icmpv6-id 7 -t 100 -u SEEN_REPLY")
	add("-p sctp -s 10.0.0.1 -d 10.0.0.2 --sport 1 --dport 2 --state ESTABLISHED --orig-vtag 1 --reply-vtag 2 -t 100")
	add("-p 89 -s fd00::1 -d fd00::2 -t 100")
	listed := in("conntrack", "-L") + in("conntrack", "-L", "-f", "ipv6")
	flows, err := Parse([]byte(listed))
	if err != nil {
		t.Fatal(err)
	}
	if len(flows) < 8 {
		t.Fatalf("%d flows of\n%s", len(flows), listed)
	}
	lines := strings.Split(strings.TrimSpace(listed), "\n")
	if len(flows) != len(lines) {
		t.Fatalf("%d flows, %d lines", len(flows), len(lines))
	}
	for i := range flows {
		if got := string(appendFlow(nil, &flows[i])); got != strings.TrimSpace(lines[i]) {
			t.Errorf("printed: %s\nlisted:  %s", got, lines[i])
		}
	}
	for _, other := range [][]string{{"conntrack", "-L", "-o", "extended,id"}, {"cat", "/proc/net/nf_conntrack"}} {
		more, err := Parse([]byte(in(other...)))
		if err != nil || len(more) == 0 {
			t.Errorf("%v: %d flows, %v", other, len(more), err)
		}
	}
}

// TestRangeOfAddresses compares the address that is picked out of a range with the kernel's pick, for packets of both families.
func TestRangeOfAddresses(t *testing.T) {
	in := namespace(t)
	in("sh", "-ec", `ip link set lo up
		ip link add v0 type veth peer name v1; ip link set v0 up; ip link set v1 up
		ip addr add 10.0.0.1/8 dev v0; ip -6 addr add fd00::1/8 dev v0 nodad
		nft -f - <<END
		table inet t {
		 chain out { type nat hook output priority -100
		  ip daddr 10.9.0.0/16 udp dport 53 dnat ip to 10.20.0.5-10.20.3.9
		  ip6 daddr fd09::/32 udp dport 53 dnat ip6 to fd20::5-fd20::77:9:13
		 }
		 chain post { type nat hook postrouting priority 100
		  ip daddr 10.8.0.0/16 snat ip to 10.20.0.5-10.20.3.9
		  ip daddr 10.7.0.0/16 snat ip to 10.20.0.5-10.20.3.9 persistent
		  ip6 daddr fd08::/32 snat ip6 to fd20::5-fd20::77:9:13
		 }
		}
END`)
	var send strings.Builder
	for i := range 12 {
		for _, net := range []string{"10.9", "10.8", "10.7"} {
			fmt.Fprintf(&send, "echo x > /dev/udp/%s.%d.%d/53 || true\n", net, i*7, i+1)
		}
		fmt.Fprintf(&send, "echo x > /dev/udp/fd09::%x:%d/53 || true\necho x > /dev/udp/fd08::%x:%d/53 || true\n", i*4096, i+1, i*4096, i+1)
	}
	in("bash", "-c", send.String())
	flows, err := Parse([]byte(in("conntrack", "-L") + in("conntrack", "-L", "-f", "ipv6")))
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, f := range flows {
		n, ok := rangeFor(f.Original.Destination.String())
		if !ok {
			continue
		}
		p := packet.Packet{Tuple: f.Original}
		v := NewView(nil, defaults)
		if v.Track(&p); p.Track.Flow == nil {
			t.Fatalf("%v is not tracked", f.Original)
		}
		v.Translate(&p, n)
		want := f.Reply.Source
		got := p.Destination
		if n.Source {
			want, got = f.Reply.Destination, p.Source
		}
		if got != want {
			t.Errorf("%v: %v, the kernel's is %v", f.Original, got, want)
		}
		compared++
	}
	if compared < 40 {
		t.Errorf("only %d flows compared", compared)
	}
}

func rangeFor(destination string) (packet.Translation, bool) {
	n := packet.Translation{Low: addr("10.20.0.5"), High: addr("10.20.3.9")}
	switch {
	case strings.HasPrefix(destination, "10.9."):
	case strings.HasPrefix(destination, "10.8."):
		n.Source = true
	case strings.HasPrefix(destination, "10.7."):
		n.Source, n.Persistent = true, true
	case strings.HasPrefix(destination, "fd09:"):
		n.Low, n.High = addr("fd20::5"), addr("fd20::77:9:13")
	case strings.HasPrefix(destination, "fd08:"):
		n.Source, n.Low, n.High = true, addr("fd20::5"), addr("fd20::77:9:13")
	default:
		return n, false
	}
	return n, true
}
