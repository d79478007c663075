package httprouting

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1 "k8s.io/api/networking/v1"

	"packetwalk.dev/internal/addons/dnsupdate"
)

const testZone = "z.aksapp.io"

func ingressOf(addresses []string, hosts ...string) *networkingv1.Ingress {
	i := &networkingv1.Ingress{}
	for _, a := range addresses {
		i.Status.LoadBalancer.Ingress = append(i.Status.LoadBalancer.Ingress, networkingv1.IngressLoadBalancerIngress{IP: a})
	}
	for _, h := range hosts {
		i.Spec.Rules = append(i.Spec.Rules, networkingv1.IngressRule{Host: h})
	}
	return i
}

func TestZoneOf(t *testing.T) {
	withTLS := ingressOf([]string{"203.0.113.10"}, "tls."+testZone)
	withTLS.Spec.TLS = []networkingv1.IngressTLS{{Hosts: []string{"also." + testZone}}}
	got := zoneOf(testZone, []*networkingv1.Ingress{
		ingressOf([]string{"203.0.113.11", "203.0.113.10"}, "Shop."+testZone, "*.wild."+testZone, testZone, "example.org", "notz.aksapp.io", ""),
		ingressOf([]string{"203.0.113.10"}, "shop."+testZone), ingressOf(nil, "waits."+testZone), ingressOf([]string{""}, "odd."+testZone), withTLS,
	})
	one, both := []netip.Addr{netip.MustParseAddr("203.0.113.10")}, []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")}
	want := dnsupdate.Records{"shop." + testZone: both, "*.wild." + testZone: both, testZone: both, "tls." + testZone: one, "also." + testZone: one}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
}

// zoneServer has a zone, and takes connections, transfers and updates of it.
func zoneServer(t *testing.T, records dnsupdate.Records) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	answer := func(msg []byte) [][]byte {
		if dnsupdate.TransferZone(msg) == testZone {
			messages, err := dnsupdate.Transfer(msg, testZone, records, 30)
			if err != nil {
				t.Error(err)
			}
			return messages
		}
		u, err := dnsupdate.Parse(msg)
		if err != nil {
			return [][]byte{dnsupdate.Answer(msg, dnsupdate.Refused)}
		}
		u.Apply(records)
		return [][]byte{dnsupdate.Answer(msg, dnsupdate.OK)}
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			for { // one client at a time
				msg, err := receive(conn)
				if err != nil {
					break
				}
				for _, m := range answer(msg) {
					if err := send(conn, m); err != nil {
						t.Error(err)
					}
				}
			}
			conn.Close()
		}
	}()
	return l.Addr().String()
}

func TestSync(t *testing.T) {
	a, b := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")
	zone := dnsupdate.Records{"gone." + testZone: {a}, "stays." + testZone: {a, b}, "moves." + testZone: {a}}
	var log bytes.Buffer
	o := &ExternalDNSOptions{Zone: testZone, Server: zoneServer(t, zone), Log: &log}
	want := dnsupdate.Records{"stays." + testZone: {a, b}, "moves." + testZone: {b}, "new." + testZone: {a}, testZone: {a}}
	for range 2 { // the second time there is nothing to do
		if err := o.sync(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.sync(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", o.Server)
	if err != nil {
		t.Fatal(err)
	}
	have, err := transfer(conn, testZone)
	conn.Close()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, have, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
	var said []string
	for line := range strings.Lines(log.String()) {
		_, message, _ := strings.Cut(strings.TrimSpace(line), " level=info msg=")
		said = append(said, message)
	}
	wantSaid := []string{
		`"Deleting A record named 'gone' for DNS zone 'z.aksapp.io'."`, `"Updating A record named 'moves' to '203.0.113.11' for DNS zone 'z.aksapp.io'."`,
		`"Updating A record named 'new' to '203.0.113.10' for DNS zone 'z.aksapp.io'."`, `"Updating A record named '@' to '203.0.113.10' for DNS zone 'z.aksapp.io'."`,
	}
	if !slices.Equal(said, wantSaid) {
		t.Errorf("said %q", said)
	}
	long := strings.Repeat("x", 64) + "." + testZone // a label has at most 63 octets
	if err := o.sync(t.Context(), dnsupdate.Records{long: {a}}); err == nil || !strings.Contains(err.Error(), long) {
		t.Errorf("a name that DNS cannot have: %v", err)
	}
}
