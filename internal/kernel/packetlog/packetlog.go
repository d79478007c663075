// Package packetlog reads the packets that rules of a network namespace log (NFLOG).
package packetlog

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
)

// Message types, commands and attributes of the kernel's packet log (include/uapi/linux/netfilter/nfnetlink_log.h).
const (
	subsystem       = 4 // NFNL_SUBSYS_ULOG
	messagePacket   = 0
	messageConfig   = 1
	configCommand   = 1
	configMode      = 2
	configTimeout   = 4
	configThreshold = 5
	commandBind     = 1
	copyPacket      = 2
	attrPayload     = 9
	attrPrefix      = 10
)

// headerBytes is how much of a packet is read: its headers.
const headerBytes = 128

// Entry is one packet that a rule logged.
type Entry struct {
	Prefix string // the rule's, without spaces around it
	Packet string // "tcp 10.224.0.4:33211 > 198.51.100.80:80 [SYN]"
}

// Read reads what rules of the namespace log to a group until ctx ends, which is no error. The kernel drops what is not read in time.
func Read(ctx context.Context, n *netns.Namespace, group uint16, each func(Entry)) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.FD()})
	if err != nil {
		return fmt.Errorf("open packet log: %w", err)
	}
	defer conn.Close()
	if err := conn.SetOption(netlink.NoENOBUFS, true); err != nil { // a flood would end the log
		return fmt.Errorf("open packet log: %w", err)
	}
	if err := bind(conn, group); err != nil {
		return fmt.Errorf("read packet log: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		messages, err := conn.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read packet log: %w", err)
		}
		for _, m := range messages {
			if e, ok := parse(m); ok {
				each(e)
			}
		}
	}
}

// bind asks for the packets of a group, each at once.
func bind(conn *netlink.Conn, group uint16) error {
	if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	e := netlink.NewAttributeEncoder()
	e.Bytes(configCommand, []byte{commandBind})
	mode := binary.BigEndian.AppendUint32(nil, headerBytes)
	e.Bytes(configMode, append(mode, copyPacket, 0))
	e.ByteOrder = binary.BigEndian
	e.Uint32(configTimeout, 1) // hundredths of a second
	e.Uint32(configThreshold, 1)
	attributes, err := e.Encode()
	if err != nil {
		return err
	}
	header := binary.BigEndian.AppendUint16([]byte{unix.AF_INET, 0}, group)
	_, err = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: subsystem<<8 | messageConfig, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header, attributes...),
	})
	if err != nil {
		return err
	}
	return conn.SetReadDeadline(time.Time{})
}

// parse reads a message; ok is false for what is no IPv4 packet.
func parse(m netlink.Message) (e Entry, ok bool) {
	if m.Header.Type != subsystem<<8|messagePacket || len(m.Data) < 4 {
		return e, false
	}
	d, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return e, false
	}
	for d.Next() {
		switch d.Type() {
		case attrPrefix:
			e.Prefix = strings.TrimSpace(strings.TrimRight(d.String(), "\x00"))
		case attrPayload:
			e.Packet, ok = describe(d.Bytes())
		}
	}
	return e, ok && d.Err() == nil
}

var tcpFlags = []string{"FIN", "SYN", "RST", "PSH", "ACK", "URG"}

// describe returns an IPv4 packet in words.
func describe(b []byte) (string, bool) {
	if len(b) < 20 || b[0]>>4 != 4 || len(b) < int(b[0]&15)*4 || b[0]&15 < 5 {
		return "", false
	}
	source, destination := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	protocol, l4 := b[9], b[int(b[0]&15)*4:]
	later := binary.BigEndian.Uint16(b[6:])&0x1fff != 0 // a later fragment has no ports
	ports := func(name string) string {
		return fmt.Sprintf("%s %s > %s", name, netip.AddrPortFrom(source, binary.BigEndian.Uint16(l4)),
			netip.AddrPortFrom(destination, binary.BigEndian.Uint16(l4[2:])))
	}
	switch {
	case protocol == unix.IPPROTO_TCP && !later && len(l4) >= 14:
		var flags []string
		for i, name := range tcpFlags {
			if l4[13]>>i&1 != 0 {
				flags = append(flags, name)
			}
		}
		return ports("tcp") + " [" + strings.Join(flags, " ") + "]", true
	case protocol == unix.IPPROTO_UDP && !later && len(l4) >= 4:
		return ports("udp"), true
	case protocol == unix.IPPROTO_ICMP && !later && len(l4) >= 2:
		return fmt.Sprintf("icmp %s > %s type %d code %d", source, destination, l4[0], l4[1]), true
	}
	return fmt.Sprintf("protocol %d %s > %s", protocol, source, destination), true
}
