package dropwatch

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// flowKey is the key of the map of flows, as the program writes it. Addresses and ports are in the network's order.
type flowKey struct {
	Location    uint64 // the address behind the kernel's call that dropped the packet
	Namespace   uint32 // the inode number of the network namespace
	Reason      uint32 // enum skb_drop_reason; 0 before Linux 5.17
	Source      [16]byte
	Destination [16]byte
	Ports       [4]byte // type and code of ICMP
	Arrived     uint32  // the index of the interface that the packet came in by; 0 for one that the namespace sends
	Link        uint32  // the index of the interface at which it is; 0 for none yet
	Protocol    uint8
	Version     uint8 // 4 or 6
	Track       uint8 // sk_buff._nfct: enum ip_conntrack_info in bits 0 to 2, and hasConnection
	_           uint8
}

const (
	// hasConnection is set in flowKey.Track where conntrack has seen the packet.
	hasConnection = 8
	// firstReply is the first state of packets that answer: IP_CT_ESTABLISHED_REPLY (include/uapi/linux/netfilter/nf_conntrack_common.h). The
	// kernel gives no connection to packets in the state after those of replies, IP_CT_UNTRACKED.
	firstReply = 3
)

// flowValue is the value of the map of flows.
type flowValue struct {
	Count  uint64
	First  uint64 // nanoseconds of CLOCK_MONOTONIC
	Last   uint64
	Name   [unix.IFNAMSIZ]byte // of the interface at which the first packet was
	Mark   uint32              // of the first packet
	_      uint32
	Tuple  [tupleBytes]byte  // struct nf_conntrack_tuple of its connection in its direction; zero without a connection
	Header [headerBytes]byte // of the first packet: what of it lies in one piece, from its IP header on
}

const (
	headerBytes = 96
	tupleBytes  = 40
	// maxFlows limits the flows that are counted one by one: to 4 MB of the kernel's memory.
	maxFlows = 16384
	// maxNamespaces limits the namespaces that are watched.
	maxNamespaces = 16384
)

// Offsets of fields.
const (
	keyLocation, keyNamespace, keyReason       = 0, 8, 12
	keySource, keyDestination, keyPorts        = 16, 32, 48
	keyArrived, keyLink                        = 52, 56
	keyProtocol, keyVersion, keyTrack, keySize = 60, 61, 62, 64
	valueCount, valueFirst, valueLast          = 0, 8, 16
	valueName, valueMark, valueTuple           = 24, 40, 48
	valueHeader                                = valueTuple + tupleBytes
	valueSize                                  = valueHeader + headerBytes
)

// Places of the program's variables, from its frame pointer on.
const (
	keyAt     = -keySize
	valueAt   = keyAt - valueSize
	scratchAt = valueAt - 8
)

// offsets are the places of fields in the kernel's structures, in bytes.
type offsets struct {
	link, socket, connection, arrived, mark, protocol, network, head int32 // struct sk_buff
	linkNamespace, linkName, linkIndex                               int32 // struct net_device
	socketNamespace                                                  int32 // struct sock
	inode                                                            int32 // struct net
	// request and reply are the tuples of struct nf_conn. Both are 0 where the kernel's module has the types.
	request, reply int32
}

// readOffsets finds the fields in the kernel's types.
func readOffsets(types *btf.Spec) (*offsets, error) {
	o := &offsets{}
	for _, f := range []struct {
		to        *int32
		structure string
		path      []string
	}{
		{&o.link, "sk_buff", []string{"dev"}},
		{&o.socket, "sk_buff", []string{"sk"}},
		{&o.connection, "sk_buff", []string{"_nfct"}},
		{&o.arrived, "sk_buff", []string{"skb_iif"}},
		{&o.mark, "sk_buff", []string{"mark"}},
		{&o.protocol, "sk_buff", []string{"protocol"}},
		{&o.network, "sk_buff", []string{"network_header"}},
		{&o.head, "sk_buff", []string{"head"}},
		{&o.linkNamespace, "net_device", []string{"nd_net", "net"}},
		{&o.linkName, "net_device", []string{"name"}},
		{&o.linkIndex, "net_device", []string{"ifindex"}},
		{&o.socketNamespace, "sock", []string{"__sk_common", "skc_net", "net"}},
		{&o.inode, "net", []string{"ns", "inum"}},
	} {
		var s *btf.Struct
		if err := types.TypeByName(f.structure, &s); err != nil {
			return nil, fmt.Errorf("find struct %s: %w", f.structure, err)
		}
		offset, err := fieldOffset(s, f.path)
		if err != nil {
			return nil, fmt.Errorf("read struct %s: %w", f.structure, err)
		}
		*f.to = int32(offset)
	}
	return o, o.readConnection(types)
}

// readConnection finds the tuples of a connection: an array of two, each behind what links it into a table.
func (o *offsets) readConnection(types *btf.Spec) error {
	var connection, element, tuple *btf.Struct
	for name, to := range map[string]**btf.Struct{
		"nf_conn": &connection, "nf_conntrack_tuple_hash": &element, "nf_conntrack_tuple": &tuple,
	} {
		if err := types.TypeByName(name, to); errors.Is(err, btf.ErrNotFound) {
			return nil
		} else if err != nil {
			return fmt.Errorf("find struct %s: %w", name, err)
		}
	}
	at, err := fieldOffset(connection, []string{"tuplehash"})
	within, elementErr := fieldOffset(element, []string{"tuple"})
	if err = errors.Join(err, elementErr); err != nil {
		return fmt.Errorf("read struct nf_conn: %w", err)
	}
	if tuple.Size != tupleBytes {
		return nil // another layout than that of Linux 3.7 to 6.18
	}
	o.request = int32(at + within)
	o.reply = o.request + int32(element.Size)
	return nil
}

// fieldOffset returns the offset in bytes of a field, which may be in a structure or union without a name.
func fieldOffset(t btf.Type, path []string) (uint32, error) {
	if len(path) == 0 {
		return 0, nil
	}
	var members []btf.Member
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		rest := path
		if m.Name == path[0] {
			rest = path[1:]
		} else if m.Name != "" {
			continue
		}
		if offset, err := fieldOffset(m.Type, rest); err == nil {
			return m.Offset.Bytes() + offset, nil
		}
	}
	return 0, fmt.Errorf("no field %s", path[0])
}

// maps are the maps that the program and its reader share.
type maps struct {
	flows      *ebpf.Map // flowKey to flowValue
	namespaces *ebpf.Map // the inode numbers of those that are watched
	uncounted  *ebpf.Map // a number: of packets of flows for which there was no room
}

// Registers that keep their values over calls.
const (
	skb       = asm.R6 // the sk_buff
	namespace = asm.R7 // its struct net, then the time
	pointer   = asm.R8 // what is read through: its interface or socket, then its IP header
	arguments = asm.R9 // the tracepoint's
)

// end is the label of the program's last instructions.
const end = "end"

// assembler writes a program.
type assembler struct {
	asm.Instructions
	label string // of the next instruction
}

func (a *assembler) add(all ...asm.Instruction) {
	if a.label != "" {
		all[0], a.label = all[0].WithSymbol(a.label), ""
	}
	a.Instructions = append(a.Instructions, all...)
}

// read reads bytes at base+offset into the stack.
func (a *assembler) read(to, size int32, base asm.Register, offset int32) {
	a.add(asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, to), asm.Mov.Imm(asm.R2, size),
		asm.Mov.Reg(asm.R3, base), asm.Add.Imm(asm.R3, offset), asm.FnProbeReadKernel.Call())
}

// load reads a number at base+offset into a register.
func (a *assembler) load(to asm.Register, size asm.Size, base asm.Register, offset int32) {
	a.read(scratchAt, int32(size.Sizeof()), base, offset)
	a.add(asm.LoadMem(to, asm.RFP, scratchAt, size))
}

// store writes R1 to the stack.
func (a *assembler) store(to int16, size asm.Size) { a.add(asm.StoreMem(asm.RFP, to, asm.R1, size)) }

// copy copies four bytes within the stack.
func (a *assembler) copy(to, from int16) {
	a.add(asm.LoadMem(asm.R1, asm.RFP, from, asm.Word))
	a.store(to, asm.Word)
}

// lookUp looks up what lies at a place of the stack: R0 points to the value, and is 0 where there is none.
func (a *assembler) lookUp(m *ebpf.Map, key int32) {
	a.add(asm.LoadMapPtr(asm.R1, m.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, key), asm.FnMapLookupElem.Call())
}

// program returns the instructions. With hasReason the tracepoint's third argument is the reason (Linux 5.17); it does not count packets
// with one of the ignored reasons.
func program(o *offsets, m *maps, hasReason bool, ignored []uint32) asm.Instructions {
	a := &assembler{}
	a.add(asm.Mov.Reg(arguments, asm.R1), asm.LoadMem(skb, arguments, 0, asm.DWord), asm.Mov.Imm(asm.R1, 0))
	for at := int16(scratchAt); at < 0; at += 8 {
		a.store(at, asm.DWord)
	}
	a.add(asm.LoadMem(asm.R1, arguments, 8, asm.DWord))
	a.store(keyAt+keyLocation, asm.DWord)
	if hasReason {
		a.add(asm.LoadMem(asm.R1, arguments, 16, asm.DWord), asm.LSh.Imm(asm.R1, 32), asm.RSh.Imm(asm.R1, 32))
		for _, reason := range ignored {
			a.add(asm.JEq.Imm(asm.R1, int32(reason), end))
		}
		a.store(keyAt+keyReason, asm.Word)
	}
	a.addNamespace(o, m)
	a.addHeader(o)
	a.addState(o)
	a.addCount(o, m)
	a.label = end
	a.add(asm.Mov.Imm(asm.R0, 0), asm.Return())
	return a.Instructions
}

// addNamespace ends the program for packets other than IP, and in namespaces that are not watched. The namespace is that of the interface, or
// of the socket that sends.
func (a *assembler) addNamespace(o *offsets, m *maps) {
	a.load(asm.R1, asm.Half, skb, o.protocol)
	a.add(asm.HostTo(asm.BE, asm.R1, asm.Half), asm.JEq.Imm(asm.R1, unix.ETH_P_IP, "IP"), asm.JNE.Imm(asm.R1, unix.ETH_P_IPV6, end))
	a.label = "IP"
	a.load(pointer, asm.DWord, skb, o.link)
	a.add(asm.JEq.Imm(pointer, 0, "socket"))
	a.load(namespace, asm.DWord, pointer, o.linkNamespace)
	a.read(valueAt+valueName, unix.IFNAMSIZ, pointer, o.linkName)
	a.load(asm.R1, asm.Word, pointer, o.linkIndex)
	a.store(keyAt+keyLink, asm.Word)
	a.add(asm.Ja.Label("namespace"))
	a.label = "socket"
	a.load(pointer, asm.DWord, skb, o.socket)
	a.add(asm.JEq.Imm(pointer, 0, end))
	a.load(namespace, asm.DWord, pointer, o.socketNamespace)
	a.label = "namespace"
	a.load(asm.R1, asm.Word, namespace, o.inode)
	a.store(keyAt+keyNamespace, asm.Word)
	a.lookUp(m.namespaces, keyAt+keyNamespace)
	a.add(asm.JEq.Imm(asm.R0, 0, end))
}

// addHeader reads addresses, protocol and ports. It ends the program for packets to groups, which every host drops that has not joined them.
// Parts of a packet behind its first have no ports, nor have packets of IPv6 with extension headers.
func (a *assembler) addHeader(o *offsets) {
	const raw = valueAt + valueHeader
	a.load(pointer, asm.DWord, skb, o.head)
	a.load(asm.R1, asm.Half, skb, o.network)
	a.add(asm.Add.Reg(pointer, asm.R1))
	a.read(raw, headerBytes, pointer, 0)
	a.add(asm.LoadMem(asm.R1, asm.RFP, raw, asm.Byte), asm.RSh.Imm(asm.R1, 4))
	a.store(keyAt+keyVersion, asm.Byte)
	a.add(asm.JEq.Imm(asm.R1, 6, "IPv6"), asm.JNE.Imm(asm.R1, 4, end))
	// RFC 791: the header's length in words at 0, the offset of a part at 6, protocol at 9, addresses at 12 and 16.
	a.add(asm.LoadMem(asm.R1, asm.RFP, raw+16, asm.Byte), asm.JGE.Imm(asm.R1, 224, end))
	a.copy(keyAt+keySource, raw+12)
	a.copy(keyAt+keyDestination, raw+16)
	a.add(asm.LoadMem(asm.R1, asm.RFP, raw+9, asm.Byte))
	a.store(keyAt+keyProtocol, asm.Byte)
	a.add(asm.LoadMem(asm.R1, asm.RFP, raw+6, asm.Half), asm.HostTo(asm.BE, asm.R1, asm.Half), asm.And.Imm(asm.R1, 0x1fff),
		asm.JNE.Imm(asm.R1, 0, "state"), asm.LoadMem(asm.R1, asm.RFP, raw, asm.Byte), asm.And.Imm(asm.R1, 0xf), asm.LSh.Imm(asm.R1, 2),
		asm.Add.Reg(pointer, asm.R1), asm.Ja.Label("ports"))
	a.label = "IPv6" // RFC 8200: next header at 6, addresses at 8 and 24
	a.add(asm.LoadMem(asm.R1, asm.RFP, raw+24, asm.Byte), asm.JEq.Imm(asm.R1, 0xff, end))
	for i := int16(0); i < 16; i += 4 {
		a.copy(keyAt+keySource+i, raw+8+i)
		a.copy(keyAt+keyDestination+i, raw+24+i)
	}
	a.add(asm.LoadMem(asm.R1, asm.RFP, raw+6, asm.Byte))
	a.store(keyAt+keyProtocol, asm.Byte)
	a.add(asm.Add.Imm(pointer, 40))
	a.label = "ports"
	a.add(asm.LoadMem(asm.R1, asm.RFP, keyAt+keyProtocol, asm.Byte), asm.JEq.Imm(asm.R1, unix.IPPROTO_TCP, "both ports"),
		asm.JEq.Imm(asm.R1, unix.IPPROTO_UDP, "both ports"), asm.JEq.Imm(asm.R1, unix.IPPROTO_ICMP, "type"),
		asm.JNE.Imm(asm.R1, unix.IPPROTO_ICMPV6, "state"))
	a.label = "type"
	a.read(keyAt+keyPorts, 2, pointer, 0)
	a.add(asm.Ja.Label("state"))
	a.label = "both ports"
	a.read(keyAt+keyPorts, 4, pointer, 0)
}

// addState reads what the header does not say: the connection, and where the packet came in.
func (a *assembler) addState(o *offsets) {
	a.label = "state"
	a.load(asm.R1, asm.DWord, skb, o.connection)
	a.add(asm.Mov.Reg(pointer, asm.R1), asm.And.Imm(asm.R1, 7), asm.And.Imm(pointer, ^7), asm.JEq.Imm(pointer, 0, "untracked"),
		asm.Or.Imm(asm.R1, hasConnection))
	a.label = "untracked"
	a.store(keyAt+keyTrack, asm.Byte)
	if o.request > 0 {
		a.add(asm.JEq.Imm(pointer, 0, "no tuple"), asm.JGE.Imm(asm.R1, hasConnection+firstReply, "reply"))
		a.read(valueAt+valueTuple, tupleBytes, pointer, o.request)
		a.add(asm.Ja.Label("no tuple"))
		a.label = "reply"
		a.read(valueAt+valueTuple, tupleBytes, pointer, o.reply)
		a.label = "no tuple"
	}
	a.load(asm.R1, asm.Word, skb, o.arrived)
	a.store(keyAt+keyArrived, asm.Word)
}

// addCount counts the packet. If its flow is new, but has no room, it counts it among those that have none.
func (a *assembler) addCount(o *offsets, m *maps) {
	now := namespace
	a.add(asm.FnKtimeGetNs.Call(), asm.Mov.Reg(now, asm.R0))
	a.lookUp(m.flows, keyAt)
	a.add(asm.JNE.Imm(asm.R0, 0, "count"))
	a.load(asm.R1, asm.Word, skb, o.mark)
	a.store(valueAt+valueMark, asm.Word)
	a.add(asm.Mov.Imm(asm.R1, 1))
	a.store(valueAt+valueCount, asm.DWord)
	a.add(asm.StoreMem(asm.RFP, valueAt+valueFirst, now, asm.DWord), asm.StoreMem(asm.RFP, valueAt+valueLast, now, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.flows.FD()), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, valueAt), asm.Mov.Imm(asm.R4, int32(ebpf.UpdateNoExist)),
		asm.FnMapUpdateElem.Call(), asm.JEq.Imm(asm.R0, 0, end))
	a.lookUp(m.flows, keyAt) // it exists now if another processor was faster
	a.add(asm.JNE.Imm(asm.R0, 0, "count"), asm.StoreImm(asm.RFP, scratchAt, 0, asm.Word))
	a.lookUp(m.uncounted, scratchAt)
	a.add(asm.JEq.Imm(asm.R0, 0, end), asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord), asm.Ja.Label(end))
	a.label = "count"
	a.add(asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord), asm.StoreMem(asm.R0, valueLast, now, asm.DWord))
}
