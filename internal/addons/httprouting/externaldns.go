package httprouting

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/addons/dns"
	"packetwalk.dev/internal/node/kube"
)

// ExternalDNSOptions are external-dns's settings, by the names of its flags.
type ExternalDNSOptions struct {
	Zone     string        // --domain-filter
	Server   string        // --rfc2136-host and --rfc2136-port: ADDRESS:PORT of the name server that takes updates
	Key      *dns.Key      // --rfc2136-tsig-keyname and --rfc2136-tsig-secret
	Interval time.Duration // --interval: how often the zone is compared, also without a change of Ingresses
	Config   *rest.Config
	Log      io.Writer
}

// log writes a line as external-dns does, in logrus's text format.
func (o *ExternalDNSOptions) log(level, message string) {
	fmt.Fprintf(o.Log, "time=%q level=%s msg=%q\n", time.Now().UTC().Format(time.RFC3339), level, message)
}

// RunExternalDNS brings the hosts of Ingresses that are in the zone into the zone, and takes names away that no Ingress has, until ctx
// ends.
func RunExternalDNS(ctx context.Context, o ExternalDNSOptions) error {
	cl, err := newClients(o.Config)
	if err != nil {
		return err
	}
	w := kube.NewWatches(nil)
	ingresses := watch(w, cl.networking, "ingresses", &networkingv1.Ingress{}, "")
	go w.Run(ctx)
	if !w.WaitForSync(ctx) {
		return nil // asked to end before it began
	}
	for {
		wait := o.Interval
		if err := o.sync(ctx, zoneOf(o.Zone, kube.Objects[*networkingv1.Ingress](ingresses))); err != nil && ctx.Err() == nil {
			o.log("error", err.Error())
			wait = min(wait, again)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-w.Changed():
		case <-time.After(wait):
		}
	}
}

// zoneOf returns the records that a zone is to have: the hosts of rules and TLS entries, with the addresses in their Ingresses' status.
func zoneOf(zone string, all []*networkingv1.Ingress) dns.Records {
	records := dns.Records{}
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
			if h = strings.ToLower(h); dns.InZone(h, zone) && len(addresses) > 0 {
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
func (o *ExternalDNSOptions) sync(ctx context.Context, want dns.Records) error {
	client := &dns.Client{Server: o.Server, Key: o.Key}
	have, err := client.Transfer(ctx, o.Zone)
	if err != nil {
		return fmt.Errorf("read zone %s: %w", o.Zone, err)
	}
	update, err := dns.Difference(o.Zone, have, want)
	if update == nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if len(want[name]) == 0 {
			o.log("info", fmt.Sprintf("Deleting A record named '%s' for DNS zone '%s'.", relative(name, o.Zone), o.Zone))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !slices.Equal(have[name], want[name]) {
			o.log("info", fmt.Sprintf("Updating A record named '%s' to '%s' for DNS zone '%s'.", relative(name, o.Zone), join(want[name]), o.Zone))
		}
	}
	if err := client.Update(ctx, update); err != nil {
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
