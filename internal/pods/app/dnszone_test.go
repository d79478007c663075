package app

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"packetwalk.dev/internal/addons/dnsupdate"
)

// TestDynamicZone: updates reach the name server that takes them and the one that has the same file, transfers give what is there, and names
// outside the zone are as they were.
func TestDynamicZone(t *testing.T) {
	const zone = "z.aksapp.io"
	file := filepath.Join(t.TempDir(), "zone")
	serve := func(args ...string) (address string) {
		s, _, err := dnsArguments(args)
		if err != nil {
			t.Fatal(err)
		}
		s.log = io.Discard
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		tcp, udp, err := listenBoth(ctx, fmt.Sprint("127.0.0.1:", freePort(t)))
		if err != nil {
			t.Fatal(err)
		}
		go s.serveTCP(tcp)
		go s.serveUDP(udp)
		return tcp.Addr().String()
	}
	takes := serve("-zone", zone, file, "-update", "ifconfig.co=198.51.100.80")
	follows := serve("-zone", "Z.aksapp.io", file, "ifconfig.co=198.51.100.80")

	exchange := func(server string, msg []byte) []byte {
		t.Helper()
		conn, err := net.Dial("tcp", server)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)); err != nil {
			t.Fatal(err)
		}
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, answer); err != nil {
			t.Fatal(err)
		}
		return answer
	}
	change := func(server string, u dnsupdate.Update) error {
		t.Helper()
		u.ID = 9
		msg, err := u.Pack()
		if err != nil {
			t.Fatal(err)
		}
		return dnsupdate.CheckAnswer(9, exchange(server, msg))
	}
	resolve := func(server, name string) string {
		t.Helper()
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server)
		}}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		got, _ := r.LookupHost(ctx, name+".")
		return fmt.Sprint(got)
	}

	set := func(kind dnsupdate.Kind, name, address string) dnsupdate.Update {
		return dnsupdate.Update{Zone: zone, Operations: []dnsupdate.Operation{
			{Kind: dnsupdate.DeleteName, Name: name}, {Kind: kind, Name: name, Address: netip.MustParseAddr(address)},
		}}
	}
	// The second address is as long as the first, and comes at once: the file's length, and perhaps its time, do not change.
	for _, address := range []string{"203.0.113.10", "203.0.113.11"} {
		if err := change(takes, set(dnsupdate.Add, "shop."+zone, address)); err != nil {
			t.Fatal(err)
		}
		for _, server := range []string{takes, follows} {
			if got := resolve(server, "Shop."+zone); got != "["+address+"]" {
				t.Errorf("%s, want %s", got, address)
			}
		}
	}
	if err := change(takes, set(dnsupdate.Add, "*."+zone, "203.0.113.12")); err != nil {
		t.Fatal(err)
	}
	if got := resolve(follows, "any."+zone); got != "[203.0.113.12]" {
		t.Errorf("wildcard: %s", got)
	}
	question, _ := dnsupdate.TransferQuestion(4, zone)
	records, seen := dnsupdate.Records{}, 0
	if done, err := dnsupdate.AddTransfer(4, exchange(takes, question), records, &seen); !done || err != nil || len(records) != 2 {
		t.Errorf("transfer: %v, done %v, %v", records, done, err)
	}
	for what, err := range map[string]error{
		"another zone":             change(takes, dnsupdate.Update{Zone: "y.aksapp.io"}),
		"a server that takes none": change(follows, set(dnsupdate.Add, "x."+zone, "1.1.1.1")),
	} {
		if err == nil {
			t.Errorf("%s: taken", what)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := resolve(takes, "shop."+zone); got != "[]" {
		t.Errorf("without a file: %s", got)
	}
	if got := resolve(takes, "ifconfig.co"); got != "[198.51.100.80]" {
		t.Errorf("ifconfig.co: %s", got)
	}
	for _, args := range [][]string{{"-listen"}, {"-update"}, {"-zone", "z"}, {"-x"}} {
		if _, _, err := dnsArguments(args); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
