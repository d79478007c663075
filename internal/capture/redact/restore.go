package redact

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"regexp"
	"slices"
	"sync"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/attribution"
	"packetwalk.dev/internal/model/packet"
)

// Restore puts the originals back into a redacted capture, by the JSON of its Originals: packets then walk through the network as it was. A
// host that has a replacement which the originals lack cannot be read.
func Restore(h capture.Head, o capture.Origin, book *attribution.Book, originals []byte) (capture.Head, capture.Origin, error) {
	if !h.Redacted {
		return h, o, errors.New("the capture is not redacted")
	}
	back, err := readOriginals(originals)
	if err != nil {
		return h, o, err
	}
	r := &redactor{addresses: newAddressMap(nil), names: newNameMap(book, nil)}
	r.addresses.back, r.names.back = back, back
	h.Redacted = false
	h, restored, err := r.capture(h, o)
	if err = cmp.Or(err, back.problem()); err != nil {
		return h, o, err
	}
	for name := range restored.Hosts {
		if !capture.HostName(name) {
			return h, o, fmt.Errorf("invalid name of a host %q", name)
		}
	}
	return h, restored, nil
}

// restorer gives originals for their replacements.
type restorer struct {
	names     map[string]string
	macs      map[packet.MAC]packet.MAC
	addresses map[int][]replacement // by length in bits, sorted by what replaced them

	mu   sync.Mutex
	lost string // the first replacement without an original
}

// replacement is an address and what replaced it.
type replacement struct{ replaced, original netip.Addr }

func readOriginals(text []byte) (*restorer, error) {
	var in struct{ Addresses, MACs, Names map[string]string }
	if err := json.Unmarshal(text, &in); err != nil {
		return nil, fmt.Errorf("it is not what 'capture --redact --map' writes: %w", err)
	}
	if len(in.Addresses)+len(in.Names) == 0 {
		return nil, errors.New("it has no addresses and names: it is not what 'capture --redact --map' writes")
	}
	b := &restorer{names: in.Names, macs: map[packet.MAC]packet.MAC{}, addresses: map[int][]replacement{}}
	for replaced, original := range in.Addresses {
		x, err := netip.ParseAddr(replaced)
		y, err2 := netip.ParseAddr(original)
		if err = cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("read address: %w", err)
		}
		if x.BitLen() != y.BitLen() {
			return nil, fmt.Errorf("%s and %s are of different address families", x, y)
		}
		b.addresses[x.BitLen()] = append(b.addresses[x.BitLen()], replacement{x, y})
	}
	for replaced, original := range in.MACs {
		x, err := packet.ParseMAC(replaced)
		y, err2 := packet.ParseMAC(original)
		if err = cmp.Or(err, err2); err != nil {
			return nil, fmt.Errorf("read MAC address: %w", err)
		}
		b.macs[x] = y
	}
	for _, list := range b.addresses {
		slices.SortFunc(list, func(a, c replacement) int { return a.replaced.Compare(c.replaced) })
	}
	return b, nil
}

// replacedName matches the names that redactions give, but for those that keep a beginning of the original.
var replacedName = regexp.MustCompile(`^((ns|pod|node|host|svc|netpol|deploy|sts|ds|job|rs|port|pool|slice|label|value|table|text|class|handler)-[a-z2-7]{8}|` +
	`if[a-z2-7]{8}|chain-[a-z2-7]{12}|(cali[46])?set-[a-z2-7]{10}|(proc|rt)-[a-z2-7]{6})$`)

// name returns the original of a name; of one that was not replaced, the same.
func (b *restorer) name(s string) string {
	original, ok := b.names[s]
	switch {
	case ok:
		return original
	case replacedName.MatchString(s):
		b.lose(s)
	}
	return s
}

// linkPrefix returns the original of the beginning of links' names, which is replaced wherever it is not public.
func (b *restorer) linkPrefix(s string) string {
	original, ok := b.names[s]
	if !ok {
		b.lose(s)
	}
	return original
}

func (b *restorer) mac(a packet.MAC) packet.MAC {
	if original, ok := b.macs[a]; ok {
		return original
	}
	return a
}

// address returns the original of an address, of which the first bits matter. Which bits a redaction flips depends on the bits before them. So
// an address that shares n bits with one whose original is known is known in these and in the next.
func (b *restorer) address(a netip.Addr, length int) netip.Addr {
	if isFixed(a) {
		return a
	}
	known, best := 0, replacement{}
	learn := func(r replacement, length int) {
		n := sharedBits(a, r.replaced) + 1
		if n = min(n, length); n > known {
			known, best = n, r
		}
	}
	for _, k := range kept {
		if k.prefix.Addr().BitLen() == a.BitLen() {
			learn(replacement{k.prefix.Addr(), k.prefix.Addr()}, k.prefix.Bits())
		}
	}
	list := b.addresses[a.BitLen()]
	at, _ := slices.BinarySearchFunc(list, a, func(r replacement, a netip.Addr) int { return r.replaced.Compare(a) })
	for _, r := range list[max(0, at-1):min(at+1, len(list))] {
		learn(r, a.BitLen())
	}
	if known < length {
		b.lose(netip.PrefixFrom(a, length).String())
		return a
	}
	out, replaced, original := a.As16(), best.replaced.As16(), best.original.As16()
	for i := range length {
		at, bit := (128-a.BitLen()+i)/8, byte(0x80)>>((128-a.BitLen()+i)%8)
		out[at] ^= (replaced[at] ^ original[at]) & bit
	}
	if a.Is4() {
		return netip.AddrFrom4([4]byte(out[12:]))
	}
	return netip.AddrFrom16(out)
}

// sharedBits returns how many leading bits two addresses of one family share.
func sharedBits(a, b netip.Addr) int {
	x, y := a.AsSlice(), b.AsSlice()
	for i := range x {
		if different := x[i] ^ y[i]; different != 0 {
			return i*8 + bits.LeadingZeros8(different)
		}
	}
	return a.BitLen()
}

// lose notes that a replacement has no original.
func (b *restorer) lose(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lost = cmp.Or(b.lost, what)
}

// problem returns an error where a replacement had no original.
func (b *restorer) problem() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.lost != "" {
		return fmt.Errorf("no original of %q: it is the map of another capture, or by an older version", b.lost)
	}
	return nil
}
