package cli

import (
	"net/netip"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

func TestHostOfEnd(t *testing.T) {
	ip := netip.MustParseAddr("10.0.0.7")
	objects := func() (snapshot.Objects, error) {
		return snapshot.Objects{
			Pods: []snapshot.Pod{{Namespace: "shop", Name: "db-0", IPs: []netip.Addr{ip}, Controller: &snapshot.Controller{Kind: "StatefulSet.apps", Name: "db"}}},
			Services: []snapshot.Service{{Namespace: "shop", Name: "db", Ports: []snapshot.ServicePort{{Protocol: packet.TCP, Port: 80,
				Endpoints: []netip.AddrPort{netip.AddrPortFrom(ip, 80)}}}}},
		}, nil
	}
	for _, c := range []struct{ host, want, err string }{
		{host: "client", want: "client"},
		{host: "internet/client", want: "internet/client"},
		{host: "nodes/n1", want: "node/n1"},
		{host: "pod/shop/db-0", want: "pod/shop/db-0"},
		{host: "container-group/x", want: "container-group/x"},
		{host: "10.13.1.4", want: "10.13.1.4"},
		{host: "sts/shop/db", want: "pod/shop/db-0"},
		{host: "svc/shop/db", want: "pod/shop/db-0"},
		{host: "deploy/shop/web", err: "deploy/shop/web: it has no pods, or does not exist"},
		{host: "client:80", err: "client:80: a host has no port; leave out :80"},
		{host: "svc/shop/db:http", err: "leave out :http"},
	} {
		t.Run(c.host, func(t *testing.T) {
			got, err := hostOfEnd(c.host, objects)
			if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("%q, %v; want %q, %q", got, err, c.want, c.err)
			}
		})
	}
}
