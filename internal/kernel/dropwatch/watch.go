package dropwatch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// Watch counts the packets that are dropped in some network namespaces. The kernel ends it with its process.
type Watch struct {
	maps
	attached link.Link
	reasons  map[uint32]string // by their numbers, without their prefix
	symbols  symbols
	counted  map[flowKey]uint64 // as they were read last
	missed   uint64             // the uncounted packets, as they were read last
	booted   time.Time          // when CLOCK_MONOTONIC began
}

// harmless are the reasons that are no loss: what is thrown away has done its work, or is about a socket that has ended.
var harmless = []string{
	"SKB_NOT_DROPPED_YET", "SKB_CONSUMED", "SOCKET_CLOSE", "OTHERHOST", "TCP_ABORT_ON_DATA", "TCP_OLD_DATA", "TCP_OFOMERGE", "TCP_OLD_SEQUENCE",
	"TCP_RESET", "TCP_OLD_ACK", "TCP_FASTOPEN", "QUEUE_PURGE",
}

// reasonPrefix begins the kernel's names of reasons.
const reasonPrefix = "SKB_DROP_REASON_"

// Open begins to count in the namespaces with some inode numbers. The error says what the kernel lacks.
func Open(namespaces []uint64) (*Watch, error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return nil, fmt.Errorf("read the kernel's types: %w; drops need a kernel with CONFIG_DEBUG_INFO_BTF", err)
	}
	fields, err := readOffsets(types)
	if err != nil {
		return nil, err
	}
	w := &Watch{reasons: map[uint32]string{}, counted: map[flowKey]uint64{}, booted: bootTime()}
	var ignored []uint32
	var reasons *btf.Enum
	if err := types.TypeByName("skb_drop_reason", &reasons); err == nil {
		for _, v := range reasons.Values {
			name := strings.TrimPrefix(v.Name, reasonPrefix)
			if w.reasons[uint32(v.Value)] = name; slices.Contains(harmless, name) {
				ignored = append(ignored, uint32(v.Value))
			}
		}
	}
	if err := w.load(fields, givesReason(types), ignored); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	for _, n := range namespaces {
		if err := w.Add(n); err != nil {
			return nil, errors.Join(err, w.Close())
		}
	}
	return w, nil
}

// givesReason reports whether the tracepoint's third argument is the reason (Linux 5.17).
func givesReason(types *btf.Spec) bool {
	var traced *btf.Typedef
	if types.TypeByName("btf_trace_kfree_skb", &traced) != nil {
		return false
	}
	pointer, _ := traced.Type.(*btf.Pointer)
	if pointer == nil {
		return false
	}
	f, _ := pointer.Target.(*btf.FuncProto)
	return f != nil && len(f.Params) > 3 // the first is the tracepoint's own
}

// load makes the maps, and attaches the program.
func (w *Watch) load(fields *offsets, hasReason bool, ignored []uint32) error {
	for _, m := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&w.flows, ebpf.MapSpec{Name: "drop_flows", Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: maxFlows}},
		{&w.namespaces, ebpf.MapSpec{Name: "drop_netns", Type: ebpf.Hash, KeySize: 4, ValueSize: 1, MaxEntries: maxNamespaces}},
		{&w.uncounted, ebpf.MapSpec{Name: "drop_missed", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}},
	} {
		made, err := ebpf.NewMap(&m.spec)
		if err != nil {
			return fmt.Errorf("make the map %s: %w", m.spec.Name, asRights(err))
		}
		*m.to = made
	}
	loaded, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "packetwalk_drop", Type: ebpf.RawTracepoint, License: "Dual MIT/GPL", Instructions: program(fields, &w.maps, hasReason, ignored),
	})
	if err != nil {
		return fmt.Errorf("load the program that counts drops: %w", asRights(err))
	}
	defer loaded.Close() // the link holds it
	w.attached, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb", Program: loaded})
	if err != nil {
		return fmt.Errorf("attach to the tracepoint skb:kfree_skb: %w", asRights(err))
	}
	return nil
}

// asRights adds to an error for missing rights which ones are needed.
func asRights(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; drops need root, or the capabilities BPF, PERFMON and SYS_RESOURCE", err)
	}
	return err
}

// Add begins to count in one more namespace.
func (w *Watch) Add(namespace uint64) error {
	if err := w.namespaces.Put(uint32(namespace), uint8(1)); err != nil {
		return fmt.Errorf("watch namespace %d: %w", namespace, err)
	}
	return nil
}

// Close ends counting, and removes what it loaded.
func (w *Watch) Close() error {
	var errs []error
	if w.attached != nil {
		errs = append(errs, w.attached.Close())
	}
	for _, m := range []*ebpf.Map{w.flows, w.namespaces, w.uncounted} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Read returns what was dropped since the last Read, and how many packets more of flows for which there was no room.
func (w *Watch) Read() (drops []witness.Drop, uncounted uint64, err error) {
	var key flowKey
	var value flowValue
	var idle []flowKey
	seen := 0
	for all := w.flows.Iterate(); all.Next(&key, &value); seen++ {
		before := w.counted[key]
		if value.Count == before {
			idle = append(idle, key)
			continue
		}
		w.counted[key] = value.Count
		drops = append(drops, w.drop(&key, &value, value.Count-before))
	}
	if seen > maxFlows/2 {
		more, err := w.forget(idle)
		if err != nil {
			return nil, 0, err
		}
		drops = append(drops, more...)
	}
	var missed uint64
	if err := w.uncounted.Lookup(uint32(0), &missed); err != nil {
		return nil, 0, fmt.Errorf("read the number of uncounted drops: %w", err)
	}
	uncounted, w.missed = missed-w.missed, missed
	return drops, uncounted, nil
}

// forget makes room: it deletes flows, and returns what was dropped of them in the last moment.
func (w *Watch) forget(flows []flowKey) (drops []witness.Drop, err error) {
	for _, key := range flows {
		var value flowValue
		err := w.flows.LookupAndDelete(&key, &value)
		switch before := w.counted[key]; {
		case errors.Is(err, ebpf.ErrNotSupported): // before Linux 5.14: new flows are uncounted then
			return drops, nil
		case err != nil:
			return nil, fmt.Errorf("delete a flow: %w", err)
		case value.Count > before:
			drops = append(drops, w.drop(&key, &value, value.Count-before))
		}
		delete(w.counted, key)
	}
	return drops, nil
}

// drop returns a flow's drops as others read them.
func (w *Watch) drop(k *flowKey, v *flowValue, count uint64) witness.Drop {
	header := v.Header[:]
	h := witness.Headers{Network: header}
	if n := witness.HeaderLength(header); n < len(header) {
		h.Transport = header[n:]
	}
	p := h.Parse()
	p.Mark, p.In = v.Mark, unix.ByteSliceToString(v.Name[:])
	tracked := k.Track&hasConnection != 0
	return witness.Drop{
		Namespace: uint64(k.Namespace), Packet: p, Reason: w.reasons[k.Reason], Function: w.symbols.name(k.Location),
		Arrived: int(k.Arrived), Link: int(k.Link), Tracked: tracked, Reply: tracked && k.Track >= hasConnection+firstReply,
		Began: v.tuple(), Count: count, First: w.booted.Add(time.Duration(v.First)), Last: w.booted.Add(time.Duration(v.Last)),
	}
}

// tuple returns what the packet was before translations; zero where that is not known, and for protocols without ports.
func (v *flowValue) tuple() (t packet.Tuple) {
	// struct nf_conntrack_tuple (include/net/netfilter/nf_conntrack_tuple.h)
	const sourcePort, family, destination, destinationPort, protocol = 16, 18, 20, 36, 38
	b := v.Tuple[:]
	switch binary.NativeEndian.Uint16(b[family:]) {
	case unix.AF_INET:
		t.Source, t.Destination = netip.AddrFrom4([4]byte(b)), netip.AddrFrom4([4]byte(b[destination:]))
	case unix.AF_INET6:
		t.Source, t.Destination = netip.AddrFrom16([16]byte(b)), netip.AddrFrom16([16]byte(b[destination:]))
	}
	if t.Protocol = packet.Protocol(b[protocol]); !t.Protocol.HasPorts() {
		return packet.Tuple{}
	}
	t.SourcePort = packet.Exactly(binary.BigEndian.Uint16(b[sourcePort:]))
	t.DestinationPort = packet.Exactly(binary.BigEndian.Uint16(b[destinationPort:]))
	return t
}

// bootTime returns when CLOCK_MONOTONIC was 0.
func bootTime() time.Time {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // every kernel has it
	return time.Now().Add(-time.Duration(ts.Nano()))
}

// symbols names the kernel's functions by addresses within them.
type symbols map[uint64]string

// maxSymbols is more than /proc/kallsyms has, in bytes.
const maxSymbols = 64 << 20

// name returns the function with an address; "" where it is not known.
func (s *symbols) name(address uint64) string {
	if *s == nil {
		*s = symbols{}
	}
	name, known := (*s)[address]
	if !known {
		name = findSymbol(address)
		(*s)[address] = name
	}
	return name
}

// findSymbol returns the last symbol of code at or before an address (proc(5), kallsyms).
func findSymbol(address uint64) string {
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		return ""
	}
	defer f.Close()
	var best uint64
	name := ""
	for lines := bufio.NewScanner(io.LimitReader(f, maxSymbols)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || !strings.Contains("tTwW", fields[1]) {
			continue
		}
		at, err := strconv.ParseUint(fields[0], 16, 64)
		if err == nil && at != 0 && at <= address && at >= best {
			best, name = at, fields[2]
		}
	}
	return name
}
