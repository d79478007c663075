package httprouting

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1 "k8s.io/api/networking/v1"

	"packetwalk.dev/internal/addons/dns"
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
		ingressOf([]string{"203.0.113.10"}, "shop."+testZone), ingressOf(nil, "waits."+testZone), ingressOf([]string{""}, "odd."+testZone),
		withTLS,
	})
	one, both := []netip.Addr{netip.MustParseAddr("203.0.113.10")},
		[]netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")}
	want := dns.Records{"shop." + testZone: both, "*.wild." + testZone: both, testZone: both, "tls." + testZone: one, "also." + testZone: one}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Error(diff)
	}
}

// zoneServer starts a name server whose zone has records, and returns the key to it.
func zoneServer(t *testing.T, records dns.Records) (address string, key *dns.Key) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	l.Close()
	if key, err = dns.NewKey("external-dns", strings.Repeat("A", 43)+"="); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan struct{}), make(chan error, 1)
	s := &dns.Server{Zone: &dns.Zone{Name: testZone, File: filepath.Join(t.TempDir(), "zone")}, Key: key, Log: io.Discard}
	go func() { done <- s.Serve(ctx, address, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	if err := (&ExternalDNSOptions{Zone: testZone, Server: address, Key: key, Log: io.Discard}).sync(ctx, records); err != nil {
		t.Fatal(err)
	}
	return address, key
}

func TestSync(t *testing.T) {
	a, b := netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("203.0.113.11")
	zone := dns.Records{"gone." + testZone: {a}, "stays." + testZone: {a, b}, "moves." + testZone: {a}}
	var log bytes.Buffer
	o := &ExternalDNSOptions{Zone: testZone, Log: &log}
	o.Server, o.Key = zoneServer(t, zone)
	want := dns.Records{"stays." + testZone: {a, b}, "moves." + testZone: {b}, "new." + testZone: {a}, testZone: {a}}
	for range 2 { // the second time there is nothing to do
		if err := o.sync(t.Context(), want); err != nil {
			t.Fatal(err)
		}
	}
	have, err := (&dns.Client{Server: o.Server, Key: o.Key}).Transfer(t.Context(), testZone)
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
		`"Deleting A record named 'gone' for DNS zone 'z.aksapp.io'."`,
		`"Updating A record named 'moves' to '203.0.113.11' for DNS zone 'z.aksapp.io'."`,
		`"Updating A record named 'new' to '203.0.113.10' for DNS zone 'z.aksapp.io'."`,
		`"Updating A record named '@' to '203.0.113.10' for DNS zone 'z.aksapp.io'."`,
	}
	if !slices.Equal(said, wantSaid) {
		t.Errorf("said %q", said)
	}
	long := strings.Repeat("x", 64) + "." + testZone // a label has at most 63 bytes
	if err := o.sync(t.Context(), dns.Records{long: {a}}); err == nil || !strings.Contains(err.Error(), long) {
		t.Errorf("a name that DNS cannot have: %v", err)
	}
}
