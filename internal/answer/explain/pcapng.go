package explain

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"time"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
)

// The numbers of pcapng (draft-ietf-opsawg-pcapng, sections 4.1 to 4.3) and of link types (draft-ietf-opsawg-pcaplinktype).
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6
	byteOrder      = 0x1a2b3c4d

	optComment     = 1
	optIfName      = 2
	optApplication = 4 // shb_userappl

	linkEthernet = 1
	linkRaw      = 101 // an IP packet without a frame

	snapLength = 1 << 18
)

// Pcapng writes the packet as it was at every interface, the reply behind it, as a capture for Wireshark: an interface is called
// HOST/LINK, and each packet's comment names the rules that changed it since the interface before. Times are in sequence, a millisecond a
// packet and a second an outcome; they say nothing else.
func Pcapng(w io.Writer, r *walk.Result, o Options) error {
	c := packetFile{ids: map[string]int{}, start: o.Time}
	if c.start.IsZero() {
		c.start = time.Unix(0, 0)
	}
	all := o.explanations(r)
	for i, s := range all {
		at := c.start.Add(time.Duration(i) * time.Second)
		prefix := ""
		if o.total(r) > 1 {
			prefix = fmt.Sprintf("outcome %d of %d: ", s.number, o.total(r))
		}
		at = c.addSteps(s.outcome.There, at, prefix+"request", o.Owners)
		if n := len(c.packets); n > 0 {
			c.packets[n-1].comment += "\n" + s.summary().text()
		}
		c.addSteps(s.outcome.Back, at, prefix+"reply", o.Owners)
	}
	b := block32(nil, blockSection, sectionBody())
	for _, link := range c.links {
		b = block32(b, blockInterface, link.body())
	}
	for i := range c.packets {
		b = block32(b, blockPacket, c.packets[i].body(c.links))
	}
	_, err := w.Write(b)
	return err
}

// packetFile collects interfaces and packets. Interfaces are described first, so the packets wait.
type packetFile struct {
	start   time.Time
	ids     map[string]int
	links   []captureLink
	packets []capturedFrame
}

type captureLink struct {
	name     string
	ethernet bool
}

type capturedFrame struct {
	link    int
	at      time.Time
	packet  packet.Packet
	comment string
}

// addSteps adds one packet's appearances at interfaces.
func (c *packetFile) addSteps(steps []walk.Step, at time.Time, what string, o *Owners) time.Time {
	why := newReasoner(o)
	var since []string
	for i := range steps {
		st := &steps[i]
		if st.Visit != nil {
			why.reason(st.Host, st.Visit, &st.Packet) // what it says holds where it leads to
		}
		link := ""
		switch st.Stage {
		case walk.Received:
			link = cmp.Or(st.Packet.BridgeIn, st.Packet.In)
		case walk.Transmit:
			link = cmp.Or(st.Packet.BridgeOut, st.Packet.Out)
		default:
			since = append(since, changeNote(st, why)...)
			continue
		}
		if link == "" {
			continue
		}
		at = at.Add(time.Millisecond)
		comment := strings.Join(append([]string{what + " " + string(st.Stage) + " by " + st.Host}, since...), "\n")
		c.packets = append(c.packets, capturedFrame{c.link(st.Host+"/"+link, link, &st.Packet), at, st.Packet, comment})
		since = nil
	}
	return at
}

// changeNote returns "nat KUBE-SEP-… 2: destination 10.0.0.1:80 → 10.0.0.2:80 (WHY)" for a step that changed what travels.
func changeNote(st *walk.Step, why *reasoner) []string {
	var visible []packet.Change
	for _, c := range changesOf(st) {
		if c.Field != "mark" && c.Field != "connmark" && c.Field != "priority" && c.Field != "tracked" {
			visible = append(visible, c)
		}
	}
	if len(visible) == 0 {
		return nil
	}
	if st.Visit != nil {
		return []string{reference(st.Visit) + ": " + changed(visible) + paren(why.why(st.Host, st.Visit, &st.Packet))}
	}
	return []string{changed(visible) + paren(st.Why)}
}

// link finds or makes an interface. One that ever carries a frame has Ethernet, lo too, as Linux captures it.
func (c *packetFile) link(name, link string, p *packet.Packet) int {
	id, ok := c.ids[name]
	if !ok {
		id = len(c.links)
		c.ids[name] = id
		c.links = append(c.links, captureLink{name: name})
	}
	l := &c.links[id]
	l.ethernet = l.ethernet || link == "lo" || p.Frame.ARP != nil || p.Frame.Known()
	return id
}

func sectionBody() []byte {
	b := binary.LittleEndian.AppendUint32(nil, byteOrder)
	b = append(b, 1, 0, 0, 0)                                   // version 1.0
	b = binary.LittleEndian.AppendUint64(b, 0xffffffffffffffff) // section length: not given
	return endOptions(option(b, optApplication, "packetwalk"))
}

func (l captureLink) body() []byte {
	kind := uint16(linkRaw)
	if l.ethernet {
		kind = linkEthernet
	}
	b := binary.LittleEndian.AppendUint16(nil, kind)
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, snapLength)
	return endOptions(option(b, optIfName, l.name))
}

func (c *capturedFrame) body(links []captureLink) []byte {
	data := encode(&c.packet, links[c.link].ethernet)
	micros := uint64(c.at.UnixMicro())
	b := binary.LittleEndian.AppendUint32(nil, uint32(c.link))
	b = binary.LittleEndian.AppendUint32(b, uint32(micros>>32))
	b = binary.LittleEndian.AppendUint32(b, uint32(micros))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	return endOptions(option(pad4(append(b, data...)), optComment, c.comment))
}

// option appends an option: code, length, value, padding.
func option(b []byte, code uint16, value string) []byte {
	value = value[:min(len(value), 1<<16-1)]
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	return pad4(append(b, value...))
}

func endOptions(b []byte) []byte { return append(b, 0, 0, 0, 0) }

func pad4(b []byte) []byte {
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// block32 appends a block: type, length, body, length again.
func block32(b []byte, kind uint32, body []byte) []byte {
	n := uint32(len(body) + 12)
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = binary.LittleEndian.AppendUint32(b, n)
	return binary.LittleEndian.AppendUint32(append(b, body...), n)
}
