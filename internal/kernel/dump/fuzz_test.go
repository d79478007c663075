package dump

import (
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
)

// FuzzMessages: no message of the kernel, however cut or nested, makes a reader panic.
func FuzzMessages(f *testing.F) {
	attributes := func(head []byte, set func(*netlink.AttributeEncoder)) []byte {
		ae := netlink.NewAttributeEncoder()
		set(ae)
		data, err := ae.Encode()
		if err != nil {
			f.Fatal(err)
		}
		return append(head, data...)
	}
	f.Add(attributes(make([]byte, unix.SizeofIfInfomsg), func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, "eth0")
		ae.Nested(unix.IFLA_LINKINFO, func(n *netlink.AttributeEncoder) error { n.String(unix.IFLA_INFO_KIND, "veth"); return nil })
	}))
	f.Add(attributes(append([]byte{unix.AF_INET6, tcpListen, 0, 0, 0, 80}, make([]byte, diagMessageSize-6)...),
		func(ae *netlink.AttributeEncoder) { ae.Uint8(inetDiagV6Only, 1) }))
	f.Add([]byte{unix.AF_INET, 0, 0, 80, 10, 0, 0, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = readLink(data)
		var d Dumper
		d.owners.Do(func() {}) // not the processes of this machine
		for _, l := range d.readSocket(packet.TCP, data) {
			if l.Local.Port() == 0 || !l.Local.Addr().IsValid() {
				t.Errorf("listener at %s", l.Local)
			}
		}
	})
}
