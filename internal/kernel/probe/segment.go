package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
)

// Segment says from where to where a TCP segment goes, and by the mark of which routing rule (SO_MARK). Addresses are IPv4.
type Segment struct {
	Source, Destination netip.AddrPort
	Mark                uint32
}

// SendACKs sends four empty TCP segments each. The end of a connection that gets one answers it with an acknowledgement that has the
// connection's own numbers (RFC 9293 section 3.10.7.4). A node's conntrack on the way takes a segment for valid only if both its numbers are
// before the connection's (nf_conntrack_proto_tcp.c: tcp_in_window). Of each number, one of two that are half of all numbers apart is before
// the connection's. The sources need not be the namespace's; one to where no route leads any more is left out.
func SendACKs(n *netns.Namespace, segments ...Segment) error {
	if len(segments) == 0 {
		return nil
	}
	var fd int
	err := n.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return fmt.Errorf("send segments in %s: %w", n.Path(), err)
	}
	defer unix.Close(fd)
	var errs []error
	for _, s := range segments {
		err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(s.Mark))
		for _, sequence := range halves {
			for _, acknowledgement := range halves {
				if err == nil {
					err = unix.Sendto(fd, s.ack(sequence, acknowledgement), 0, &unix.SockaddrInet4{Addr: s.Destination.Addr().As4()})
				}
			}
		}
		if err != nil && !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
			errs = append(errs, fmt.Errorf("send a segment from %s to %s in %s: %w", s.Source, s.Destination, n.Path(), err))
		}
	}
	return errors.Join(errs...)
}

// halves are half of all sequence numbers apart.
var halves = [2]uint32{0, 1 << 31}

// ack returns the IPv4 packet; its length, its identification and the checksum of its header are the kernel's to fill in (raw(7)).
func (s Segment) ack(sequence, acknowledgement uint32) []byte {
	p := Probe{tuple: packet.Tuple{Protocol: packet.TCP, Source: s.Source.Addr(), Destination: s.Destination.Addr()}}
	tcp := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, s.Source.Port()), s.Destination.Port())
	tcp = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(tcp, sequence), acknowledgement)
	tcp = append(tcp, 5<<4, byte(packet.ACK), 0, 0, 0, 0, 0, 0)
	header := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, byte(packet.TCP), 0, 0}
	return append(append(append(header, s.Source.Addr().AsSlice()...), s.Destination.Addr().AsSlice()...), p.summed(tcp, 16)...)
}
