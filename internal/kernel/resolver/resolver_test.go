package resolver

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// server answers on UDP and TCP, and notes what it is asked: "A name", over TCP "tcp A name".
type server struct {
	t      *testing.T
	udp    net.PacketConn
	tcp    net.Listener
	answer func(tcp bool, q dns.Question, m *dns.Msg) []*dns.Msg

	mu    sync.Mutex
	asked []string
}

func serve(t *testing.T, answer func(tcp bool, q dns.Question, m *dns.Msg) []*dns.Msg) *server {
	t.Helper()
	s := &server{t: t, answer: answer}
	var err error
	if s.udp, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if s.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*dns.Server{{PacketConn: s.udp, Handler: s}, {Listener: s.tcp, Handler: s}} {
		started := make(chan struct{})
		d.NotifyStartedFunc = func() { close(started) }
		go func() { _ = d.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = d.Shutdown() })
	}
	return s
}

func (s *server) ServeDNS(w dns.ResponseWriter, m *dns.Msg) {
	_, tcp := w.RemoteAddr().(*net.TCPAddr)
	q := m.Question[0]
	what := dns.TypeToString[q.Qtype] + " " + q.Name
	if tcp {
		what = "tcp " + what
	}
	s.mu.Lock()
	s.asked = append(s.asked, what)
	s.mu.Unlock()
	for _, a := range s.answer(tcp, q, m) {
		_ = w.WriteMsg(a)
	}
}

// dial leads 10.0.0.10 to the server, and other addresses to no answer.
func (s *server) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address != "10.0.0.10:53" {
		return nil, fmt.Errorf("dial %s: no route", address)
	}
	to := s.udp.LocalAddr().String()
	if network == "tcp" {
		to = s.tcp.Addr().String()
	}
	return (&net.Dialer{}).DialContext(ctx, network, to)
}

// zone answers from records in the zone file format; a name that it does not have does not exist.
func zone(t *testing.T, text string) func(bool, dns.Question, *dns.Msg) []*dns.Msg {
	t.Helper()
	var records []dns.RR
	for line := range strings.Lines(text) {
		r, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	return func(_ bool, q dns.Question, m *dns.Msg) []*dns.Msg {
		a := new(dns.Msg).SetReply(m)
		a.Rcode = dns.RcodeNameError
		for _, r := range records {
			if strings.EqualFold(r.Header().Name, q.Name) {
				a.Rcode = dns.RcodeSuccess
			}
		}
		for name, hops := q.Name, 0; hops < 30; hops++ { // as a recursive name server
			next := ""
			for _, r := range records {
				if c, ok := r.(*dns.CNAME); ok && r.Header().Name == name {
					a.Answer, next = append(a.Answer, r), c.Target
				} else if r.Header().Name == name && r.Header().Rrtype == q.Qtype {
					a.Answer = append(a.Answer, r)
				}
			}
			if name = next; next == "" {
				break
			}
		}
		return []*dns.Msg{a}
	}
}

const pod = "search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.0.0.10\noptions ndots:5 timeout:1 attempts:1\n"

// TestLookUp shows which names are asked for, and which addresses count.
func TestLookUp(t *testing.T) {
	records := `example.com. IN A 203.0.113.7
example.com. IN A 203.0.113.8
example.com. IN AAAA 2001:db8::7
www.example.com. IN CNAME edge.example.net.
edge.example.net. IN CNAME other.example.net.
other.example.net. IN A 203.0.113.9
web.shop.svc.cluster.local. IN A 10.0.0.80
text.example.com. IN TXT "no address"
loop.example.com. IN CNAME pool.example.com.
pool.example.com. IN CNAME loop.example.com.
taken.example. IN A 198.51.100.1
taken.example.shop.svc.cluster.local. IN A 198.51.100.2
`
	for _, c := range []struct{ conf, hosts, name, want, asked string }{
		{pod, "", "example.com", "example.com 203.0.113.7 203.0.113.8 2001:db8::7 10.0.0.10",
			"example.com.shop.svc.cluster.local. example.com.svc.cluster.local. example.com.cluster.local. example.com."},
		{pod, "", "example.com.", "example.com 203.0.113.7 203.0.113.8 2001:db8::7 10.0.0.10", "example.com."},
		{"nameserver 10.0.0.10\nsearch a.example\n", "", "example.com", "example.com 203.0.113.7 203.0.113.8 2001:db8::7 10.0.0.10", "example.com."},
		{"nameserver 10.0.0.10\nsearch a.example\n", "", "no.example", "none 10.0.0.10",
			"no.example. no.example.a.example."},
		{"search old.example\nnameserver 10.0.0.10\nsearch svc.cluster.local\noptions ndots:2\n", "", "web.shop", "web.shop.svc.cluster.local 10.0.0.80 10.0.0.10",
			"web.shop.svc.cluster.local."},
		{pod, "", "www.example.com.", "www.example.com 203.0.113.9 10.0.0.10", "www.example.com."},
		{pod, "", "taken.example", "taken.example.shop.svc.cluster.local 198.51.100.2 10.0.0.10", "taken.example.shop.svc.cluster.local."},
		{pod, "", "text.example.com.", "none 10.0.0.10", "text.example.com."},
		{pod, "", "loop.example.com.", "none 10.0.0.10: ask 10.0.0.10 for loop.example.com: its aliases (CNAME) do not end", "loop.example.com."},
		{pod, "127.0.0.1 localhost\n192.0.2.9 Example.COM other # example.com\n::ffff:192.0.2.9 example.com\n", "example.com",
			"example.com 192.0.2.9 /etc/hosts", ""},
		{pod, "192.0.2.9\nexample.com 192.0.2.9\n# 192.0.2.8 example.com", "example.com.", "example.com 203.0.113.7 203.0.113.8 2001:db8::7 10.0.0.10", "example.com."},
		{"nameserver 10.9.9.9\nnameserver 10.0.0.10\n", "", "example.com", "example.com 203.0.113.7 203.0.113.8 2001:db8::7 10.0.0.10", "example.com."},
		{"nameserver 10.9.9.9\noptions attempts:1", "", "example.com", "none 10.9.9.9: ask 10.9.9.9 for example.com: dial 10.9.9.9:53: no route", ""},
		{"", "", "example.com", "none 127.0.0.1: ask 127.0.0.1 for example.com: dial 127.0.0.1:53: no route", ""},
		{"nameserver 10.0.0.10\noptions use-vc\n", "", "example.com", "example.com 203.0.113.7 203.0.113.8 2001:db8::7 10.0.0.10", "example.com."},
		{"nameserver 10.0.0.10\nsearch a\x1b[2J. .. b." + strings.Repeat("x", 300) + "\noptions ndots:99999999999999999999 timeout:-3 ndots:5 \x00\n", "",
			"example.com", "example.com 203.0.113.7 203.0.113.8 2001:db8::7 10.0.0.10", "example.com."},
	} {
		t.Run(c.conf+c.name, func(t *testing.T) {
			s := serve(t, zone(t, records))
			got, err := LookUp(t.Context(), s.dial, Files{[]byte(c.conf), []byte(c.hosts)}, c.name)
			words := got.Name
			for _, a := range got.Addresses {
				words += " " + a.String()
			}
			words += " " + got.Server
			if len(got.Addresses) == 0 {
				words = strings.TrimSuffix("none "+got.Server+": "+got.Unanswered, ": ")
			}
			if err != nil || words != c.want || got.OverTCP != strings.Contains(c.conf, "use-vc") {
				t.Errorf("got  %s, %v\nwant %s", words, err, c.want)
			}
			var asked []string
			for _, what := range s.asked {
				what = what[strings.LastIndexByte(what, ' ')+1:]
				if !slices.Contains(asked, what) {
					asked = append(asked, what)
				}
			}
			if got := strings.Join(asked, " "); got != c.asked {
				t.Errorf("asked for %s, want %s", got, c.asked)
			}
			if strings.Contains(c.conf, "use-vc") != slices.ContainsFunc(s.asked, func(what string) bool { return strings.HasPrefix(what, "tcp") }) {
				t.Errorf("asked %q", s.asked)
			}
		})
	}
}

// TestHostileServers shows that no answer makes a look-up long, large or wrong.
func TestHostileServers(t *testing.T) {
	many := func(m *dns.Msg, n int) *dns.Msg {
		a := new(dns.Msg).SetReply(m)
		for i := range n {
			a.Answer = append(a.Answer, &dns.A{Hdr: dns.RR_Header{Name: m.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET},
				A: net.IPv4(203, 0, byte(i>>8), byte(i))})
		}
		a.Compress = true
		return a
	}
	for name, c := range map[string]struct {
		answer func(tcp bool, q dns.Question, m *dns.Msg) []*dns.Msg
		want   string
	}{
		"silence":  {func(bool, dns.Question, *dns.Msg) []*dns.Msg { return nil }, "no answer within 1s"},
		"SERVFAIL": {func(_ bool, _ dns.Question, m *dns.Msg) []*dns.Msg { return []*dns.Msg{new(dns.Msg).SetRcode(m, 2)} }, "it says SERVFAIL"},
		"thousands of addresses, cut to nothing first": {func(tcp bool, _ dns.Question, m *dns.Msg) []*dns.Msg {
			if tcp {
				return []*dns.Msg{many(m, 3000)}
			}
			a := new(dns.Msg).SetReply(m)
			a.Truncated = true
			return []*dns.Msg{a}
		}, "64 and 2936 more"},
		"another question first": {func(_ bool, _ dns.Question, m *dns.Msg) []*dns.Msg {
			forged, other := many(m, 3), many(m, 4)
			forged.Id++
			other.Question[0].Name = "elsewhere.example."
			return []*dns.Msg{forged, other, many(m, 1)}
		}, "1 and 0 more"},
		"other questions only": {func(_ bool, _ dns.Question, m *dns.Msg) (all []*dns.Msg) {
			for range 40 {
				forged := many(m, 3)
				forged.Id++
				all = append(all, forged)
			}
			return all
		}, "its messages answer another question"},
		"records of another name": {func(_ bool, _ dns.Question, m *dns.Msg) []*dns.Msg {
			a := many(m, 1)
			a.Answer[0].Header().Name = "elsewhere.example."
			return []*dns.Msg{a}
		}, "0 and 0 more; "},
		"always truncated": {func(_ bool, _ dns.Question, m *dns.Msg) []*dns.Msg {
			a := new(dns.Msg).SetReply(m)
			a.Truncated = true
			return []*dns.Msg{a}
		}, "0 and 0 more; "},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c.answer)
			began := time.Now()
			got, err := LookUp(t.Context(), s.dial, Files{ResolvConf: []byte("nameserver 10.0.0.10\noptions timeout:1 attempts:1\n")}, "example.com")
			words := fmt.Sprintf("%d and %d more; %s", len(got.Addresses), got.More, got.Unanswered)
			if err != nil || !strings.Contains(words, c.want) {
				t.Errorf("got %s, %v, want %s", words, err, c.want)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestOneFamilyUnanswered shows that a look-up says which family's addresses it does not know, where the other's answer came.
func TestOneFamilyUnanswered(t *testing.T) {
	for kind, want := range map[uint16]string{
		dns.TypeA: "2001:db8::7; IPv4 addresses unknown: it says SERVFAIL", dns.TypeAAAA: "203.0.113.7; IPv6 addresses unknown: it says SERVFAIL",
		dns.TypeTXT: "203.0.113.7 2001:db8::7; ",
	} {
		whole := zone(t, "example.com. IN A 203.0.113.7\nexample.com. IN AAAA 2001:db8::7\n")
		s := serve(t, func(tcp bool, q dns.Question, m *dns.Msg) []*dns.Msg {
			if q.Qtype == kind {
				return []*dns.Msg{new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)}
			}
			return whole(tcp, q, m)
		})
		got, err := LookUp(t.Context(), s.dial, Files{ResolvConf: []byte(pod)}, "example.com.")
		words := strings.Trim(fmt.Sprint(got.Addresses), "[]") + "; " + got.Unanswered
		if err != nil || words != want {
			t.Errorf("%s: got %s, %v; want %s", dns.TypeToString[kind], words, err, want)
		}
	}
}

// TestEarlierNameUnanswered shows that a look-up says of a name of the search list that it may exist, where the answer is another's.
func TestEarlierNameUnanswered(t *testing.T) {
	whole := zone(t, "example.com. IN A 203.0.113.7\n")
	s := serve(t, func(tcp bool, q dns.Question, m *dns.Msg) []*dns.Msg {
		if q.Name == "example.com.svc.cluster.local." {
			return []*dns.Msg{new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)}
		}
		return whole(tcp, q, m)
	})
	got, err := LookUp(t.Context(), s.dial, Files{ResolvConf: []byte(pod)}, "example.com")
	const want = "a name before it may exist: ask 10.0.0.10 for example.com.svc.cluster.local: it says SERVFAIL"
	if err != nil || got.Name != "example.com" || got.Unanswered != want {
		t.Errorf("got %+v, %v", got, err)
	}
}

// FuzzFiles: whatever a container writes into its files, reading them ends, and every address of a server can be dialled.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(pod), []byte("127.0.0.1 localhost\n"), "example.com")
	f.Add([]byte("nameserver fe80::1%\x1b[2J\nnameserver ::ffff:1.2.3.4\nsearch ..\n"), []byte("::1%x a"), "a")
	f.Fuzz(func(t *testing.T, conf, text []byte, name string) {
		c := parse(conf)
		if len(c.servers) == 0 || len(c.servers) > mostServers || c.timeout > 30*time.Second || c.attempts > mostAttempts {
			t.Fatalf("%+v", c)
		}
		for _, s := range c.servers {
			if _, err := netip.ParseAddrPort(s); err != nil {
				t.Fatal(err)
			}
		}
		if all := c.candidates(name, false); len(all) > mostDomains+1 {
			t.Fatalf("%d candidates", len(all))
		}
		hosts(text, name)
	})
}
