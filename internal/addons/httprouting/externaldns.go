package httprouting

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/addons/dnsupdate"
)

// ExternalDNSOptions are external-dns's settings, by the names of its flags.
type ExternalDNSOptions struct {
	Zone     string        // --domain-filter
	Server   string        // --rfc2136-host and --rfc2136-port: ADDRESS:PORT of the name server that takes updates
	Interval time.Duration // --interval: how often the zone is compared, also without a change of Ingresses
	Config   *rest.Config
	Log      io.Writer
}

// say logs as external-dns does, in logrus's text format.
func (o *ExternalDNSOptions) say(level, message string) {
	fmt.Fprintf(o.Log, "time=%q level=%s msg=%q\n", time.Now().UTC().Format(time.RFC3339), level, message)
}

// dnsTTL is external-dns's default for records without a lifetime, in seconds.
const dnsTTL = 300

// RunExternalDNS brings the hosts of Ingresses that are in the zone into the zone, and takes names away that no Ingress has, until ctx ends.
func RunExternalDNS(ctx context.Context, o ExternalDNSOptions) error {
	cl, err := newClients(o.Config)
	if err != nil {
		return err
	}
	w := newWatches()
	ingresses := w.add(cl.networking, "ingresses", &networkingv1.Ingress{}, fields.Everything())
	if !w.start(ctx) {
		return nil // asked to end before it began
	}
	for {
		wait := o.Interval
		if err := o.sync(ctx, zoneOf(o.Zone, list[*networkingv1.Ingress](ingresses))); err != nil && ctx.Err() == nil {
			o.say("error", err.Error())
			wait = min(wait, again)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		case <-time.After(wait):
		}
	}
}

// zoneOf are the records that a zone is to have: the hosts of rules and TLS entries, with the addresses in their Ingresses' status.
func zoneOf(zone string, all []*networkingv1.Ingress) dnsupdate.Records {
	records := dnsupdate.Records{}
	for _, i := range all {
		var addresses []netip.Addr
		for _, in := range i.Status.LoadBalancer.Ingress {
			if a, err := netip.ParseAddr(in.IP); err == nil {
				addresses = append(addresses, a)
			}
		}
		var hosts []string
		for _, r := range i.Spec.Rules {
			hosts = append(hosts, r.Host)
		}
		for _, t := range i.Spec.TLS {
			hosts = append(hosts, t.Hosts...)
		}
		for _, h := range hosts {
			if h = strings.ToLower(h); dnsupdate.InZone(h, zone) && len(addresses) > 0 {
				records[h] = append(records[h], addresses...)
			}
		}
	}
	for name := range records {
		slices.SortFunc(records[name], netip.Addr.Compare)
		records[name] = slices.Compact(records[name])
	}
	return records
}

// sync compares the zone as it is with the zone as it should be, and has the difference made.
func (o *ExternalDNSOptions) sync(ctx context.Context, want dnsupdate.Records) error {
	conn, err := (&net.Dialer{Timeout: connectTimeout}).DialContext(ctx, "tcp", o.Server)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	have, err := transfer(conn, o.Zone)
	if err != nil {
		return fmt.Errorf("read zone %s: %w", o.Zone, err)
	}
	u := difference(o.Zone, have, want)
	if len(u.Operations) == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if len(want[name]) == 0 {
			o.say("info", fmt.Sprintf("Deleting A record named '%s' for DNS zone '%s'.", relative(name, o.Zone), o.Zone))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !slices.Equal(have[name], want[name]) {
			o.say("info", fmt.Sprintf("Updating A record named '%s' to '%s' for DNS zone '%s'.", relative(name, o.Zone), join(want[name]), o.Zone))
		}
	}
	if err := update(conn, u); err != nil {
		return fmt.Errorf("update zone %s: %w", o.Zone, err)
	}
	return nil
}

func relative(name, zone string) string {
	if name == zone {
		return "@"
	}
	return strings.TrimSuffix(name, "."+zone)
}

func join(all []netip.Addr) string {
	var texts []string
	for _, a := range all {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}

// difference is what makes a zone another one: names that differ are made anew.
func difference(zone string, have, want dnsupdate.Records) dnsupdate.Update {
	u := dnsupdate.Update{ID: uint16(rand.Uint32()), Zone: zone}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if !slices.Equal(have[name], want[name]) {
			u.Operations = append(u.Operations, dnsupdate.Operation{Kind: dnsupdate.DeleteName, Name: name})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if slices.Equal(have[name], want[name]) {
			continue
		}
		for _, a := range want[name] {
			u.Operations = append(u.Operations, dnsupdate.Operation{Kind: dnsupdate.Add, Name: name, Address: a, TTL: dnsTTL})
		}
	}
	return u
}

// transfer reads the whole zone over a connection to a name server.
func transfer(conn io.ReadWriter, zone string) (dnsupdate.Records, error) {
	id := uint16(rand.Uint32())
	question, err := dnsupdate.TransferQuestion(id, zone)
	if err != nil {
		return nil, err
	}
	if err := send(conn, question); err != nil {
		return nil, err
	}
	records, seen := dnsupdate.Records{}, 0
	for {
		msg, err := receive(conn)
		if err != nil {
			return nil, err
		}
		done, err := dnsupdate.AddTransfer(id, msg, records, &seen)
		if err != nil {
			return nil, err
		}
		if done {
			for name := range records {
				slices.SortFunc(records[name], netip.Addr.Compare)
			}
			return records, nil
		}
	}
}

func update(conn io.ReadWriter, u dnsupdate.Update) error {
	msg, err := u.Pack()
	if err != nil {
		return err
	}
	if err := send(conn, msg); err != nil {
		return err
	}
	answer, err := receive(conn)
	if err != nil {
		return err
	}
	return dnsupdate.CheckAnswer(u.ID, answer)
}

// send writes a message with its length before it (RFC 1035, 4.2.2).
func send(w io.Writer, msg []byte) error {
	if len(msg) > 0xffff {
		return fmt.Errorf("a message of %d octets; the limit is 65535", len(msg))
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...))
	return err
}

func receive(r io.Reader) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(size[:]))
	_, err := io.ReadFull(r, msg)
	return msg, err
}
