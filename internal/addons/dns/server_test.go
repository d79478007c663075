package dns

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/miekg/dns"
)

const testZone = "z.aksapp.io"

var addressCmp = cmpopts.EquateComparable(netip.Addr{})

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func testKey(t *testing.T, octet string) *Key {
	t.Helper()
	k, err := NewKey("external-dns", "\n"+strings.Repeat(octet, 43)+"=\n")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// start serves on the loopback and gives the address.
func start(t *testing.T, s *Server) string {
	t.Helper()
	if s.Log == nil {
		s.Log = io.Discard
	}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", udp.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.serve(ctx, tcp, udp) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		udp.Close()
		tcp.Close()
	})
	return udp.LocalAddr().String()
}

// resolver returns Go's own resolver, which asks a server.
func resolver(network, server string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, n, _ string) (net.Conn, error) {
		if network != "" {
			n = network
		}
		return new(net.Dialer).DialContext(ctx, n, server)
	}}
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestQueries(t *testing.T) {
	names, err := ParseRecords([]string{"ifconfig.co=198.51.100.80,2001:db8::80", "*.Example.com.=203.0.113.9"})
	if err != nil {
		t.Fatal(err)
	}
	many := []netip.Addr{}
	for i := range 200 {
		many = append(many, netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}))
	}
	names["many.test"] = many
	log := &syncBuffer{}
	server := start(t, &Server{Names: names, Log: log})
	for _, network := range []string{"udp", "tcp"} {
		r := resolver(network, server)
		for name, want := range map[string]string{"ifconfig.co.": "[198.51.100.80 2001:db8::80]", "IFCONFIG.co.": "[198.51.100.80 2001:db8::80]",
			"a.b.example.com.": "[203.0.113.9]", "nosuch.test.": "[]"} {
			got, err := r.LookupHost(t.Context(), name)
			slices.Sort(got)
			var failure *net.DNSError
			if fmt.Sprint(got) != want || want == "[]" && (!errors.As(err, &failure) || !failure.IsNotFound) {
				t.Errorf("%s %s: %v, %v", network, name, got, err)
			}
		}
		for address, want := range map[string]string{"198.51.100.80": "[ifconfig.co.]", "2001:db8::80": "[ifconfig.co.]", "203.0.113.9": "[]",
			"192.0.2.1": "[]"} {
			if got, _ := r.LookupAddr(t.Context(), address); fmt.Sprint(got) != want {
				t.Errorf("%s %s: %v, want %s", network, address, got, want)
			}
		}
	}
	// What is too long for UDP comes over TCP.
	if got, err := resolver("", server).LookupHost(t.Context(), "many.test."); len(got) != 200 {
		t.Errorf("%d addresses, %v", len(got), err)
	}
	m, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("a\x1b[2J\n.test.", dns.TypeA), server)
	if err != nil || m.Rcode != dns.RcodeNameError {
		t.Errorf("%v, %v", m, err)
	}
	if said := log.String(); !strings.Contains(said, " 1 ifconfig.co\n") || strings.Contains(said, "\x1b") {
		t.Errorf("log: %q", said)
	}
	for name, m := range map[string]*dns.Msg{
		"transfer": new(dns.Msg).SetAxfr("test."), "update": new(dns.Msg).SetUpdate("test."),
	} {
		m, _, err := (&dns.Client{Net: "tcp"}).Exchange(m, server)
		if err != nil || m.Rcode != dns.RcodeRefused {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
}

// TestZone: updates reach the name server that takes them and the one that has the same file, transfers give what is there, and names
// outside the zone are as they were.
func TestZone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zone")
	names, err := ParseRecords([]string{"ifconfig.co=198.51.100.80"})
	if err != nil {
		t.Fatal(err)
	}
	key := testKey(t, "A")
	takes := start(t, &Server{Names: names, Zone: &Zone{Name: testZone, File: file}, Key: key})
	follows := start(t, &Server{Names: names, Zone: &Zone{Name: testZone, File: file}})
	client := &Client{Server: takes, Key: key}
	have := Records{}
	for _, want := range []Records{
		// The second address is as long as the first, and comes at once: the file's length, and perhaps its time, do not change.
		{"shop." + testZone: {addr("203.0.113.10")}},
		{"shop." + testZone: {addr("203.0.113.11")}},
		{"shop." + testZone: {addr("203.0.113.11")}, "*." + testZone: {addr("203.0.113.12"), addr("2001:db8::1")}},
	} {
		m, err := Difference(testZone, have, want)
		if err == nil {
			err = client.Update(t.Context(), m)
		}
		if err != nil {
			t.Fatal(err)
		}
		if have, err = client.Transfer(t.Context(), testZone); err != nil || cmp.Diff(want, have, addressCmp) != "" {
			t.Fatalf("%v, %v; want %v", have, err, want)
		}
		for _, server := range []string{takes, follows} {
			if got, _ := resolver("", server).LookupHost(t.Context(), "Shop."+testZone+"."); fmt.Sprint(got) != fmt.Sprint(want["shop."+testZone]) {
				t.Errorf("%v, want %v", got, want)
			}
		}
	}
	if got, _ := resolver("", follows).LookupHost(t.Context(), "any."+testZone+"."); !slices.Contains(got, "203.0.113.12") {
		t.Errorf("wildcard: %v", got)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got, _ := resolver("", takes).LookupHost(t.Context(), "shop."+testZone+"."); len(got) > 0 {
		t.Errorf("without a file: %v", got)
	}
	if got, _ := resolver("", takes).LookupHost(t.Context(), "ifconfig.co."); fmt.Sprint(got) != "[198.51.100.80]" {
		t.Errorf("ifconfig.co: %v", got)
	}
}

// TestOnlyWithTheKey: who has not signed a message with the lab's key, by hmac-sha256 and just now, neither changes the zone nor reads it
// whole.
func TestOnlyWithTheKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "zone")
	key, other := testKey(t, "A"), testKey(t, "B")
	server := start(t, &Server{Zone: &Zone{Name: testZone, File: file}, Key: key})
	sign := func(algorithm string, k *Key, at time.Time) func(*dns.Msg, *dns.Client) {
		return func(m *dns.Msg, c *dns.Client) {
			c.TsigSecret = k.secrets()
			m.SetTsig(k.owner(), algorithm, 300, at.Unix())
		}
	}
	stranger := &Key{"stranger", key.Secret}
	now := time.Now()
	for name, tt := range map[string]struct {
		sign func(*dns.Msg, *dns.Client)
		want int
	}{
		"unsigned":          {func(*dns.Msg, *dns.Client) {}, dns.RcodeRefused},
		"another secret":    {sign(dns.HmacSHA256, other, now), dns.RcodeNotAuth},
		"another name":      {sign(dns.HmacSHA256, stranger, now), dns.RcodeNotAuth},
		"another algorithm": {sign(dns.HmacSHA1, key, now), dns.RcodeNotAuth},
		"an old one":        {sign(dns.HmacSHA256, key, now.Add(-time.Hour)), dns.RcodeNotAuth},
		"the key":           {sign(dns.HmacSHA256, key, now), dns.RcodeSuccess},
	} {
		for _, network := range []string{"udp", "tcp"} {
			update, err := Difference(testZone, nil, Records{"a." + testZone: {addr("203.0.113.1")}})
			if err != nil {
				t.Fatal(err)
			}
			for what, m := range map[string]*dns.Msg{"update": update, "transfer": new(dns.Msg).SetAxfr(testZone + ".")} {
				want := tt.want
				if what == "transfer" && network == "udp" && want == dns.RcodeSuccess {
					want = dns.RcodeRefused
				}
				client := &dns.Client{Net: network}
				tt.sign(m, client)
				answer, _, err := client.Exchange(m, server)
				if answer == nil || answer.Rcode != want || want != dns.RcodeSuccess && len(answer.Answer) > 0 {
					t.Errorf("%s of %s over %s: %v, %v; want %s", what, name, network, answer, err, dns.RcodeToString[want])
				}
			}
			if _, err := os.Stat(file); (err == nil) != (tt.want == dns.RcodeSuccess) {
				t.Errorf("%s over %s: the zone's file: %v", name, network, err)
			}
			os.Remove(file)
		}
	}
}

// TestClientWantsSignatures shows that the client rejects an answer that the server has not signed.
func TestClientWantsSignatures(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	liar := &dns.Server{Listener: l, MsgAcceptFunc: accept, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
		answer := new(dns.Msg).SetReply(m)
		if m.Opcode == dns.OpcodeQuery {
			answer.Answer = []dns.RR{soa(testZone), soa(testZone)}
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = liar.ActivateAndServe() }()
	t.Cleanup(func() { l.Close() })
	c := &Client{Server: l.Addr().String(), Key: testKey(t, "A")}
	if records, err := c.Transfer(t.Context(), testZone); err == nil {
		t.Errorf("transfer: %v", records)
	}
	m, err := Difference(testZone, nil, Records{"a." + testZone: {addr("203.0.113.1")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), m); err == nil {
		t.Error("an update without a signature is accepted")
	}
}

// TestBounds: a zone has maxRecords addresses, which a transfer brings in full, and no more; and connections beyond the limit wait.
func TestBounds(t *testing.T) {
	full := Records{}
	for i := range maxRecords {
		full[fmt.Sprintf("n%d.%s", i, testZone)] = []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})}
	}
	file := filepath.Join(t.TempDir(), "zone")
	if err := os.WriteFile(file, append(full.lines(), "more."+testZone+" 10.9.9.9\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	key := testKey(t, "A")
	server := start(t, &Server{Zone: &Zone{Name: testZone, File: file}, Key: key})
	c := &Client{Server: server, Key: key}
	got, err := c.Transfer(t.Context(), testZone)
	if err != nil || got.count() > maxRecords {
		t.Fatalf("%d addresses, %v", got.count(), err)
	}
	m, err := Difference(testZone, nil, Records{"one.more." + testZone: {addr("203.0.113.1")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Update(t.Context(), m); err == nil || !strings.Contains(err.Error(), "REFUSED") {
		t.Errorf("one more: %v", err)
	}
	held := make([]net.Conn, maxConnections)
	for i := range held {
		if held[i], err = net.Dial("tcp", server); err != nil {
			t.Fatal(err)
		}
		defer held[i].Close()
	}
	conn, err := net.Dial("tcp", server)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	query, err := new(dns.Msg).SetQuestion("a.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(query))), query...)); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection more: %v", err)
	}
	for _, c := range held {
		c.Close()
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Errorf("after the others have ended: %v", err)
	}
}
