package iptables

import (
	"fmt"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var markMatch = matchExtension{
	options: spec("mark"),
	lower:   lowerMark,
	listed:  map[string]listedMatch{"mark": after("match", "mark", "mark")},
}

var connmarkMatch = matchExtension{
	options: spec("mark"),
	lower:   lowerMark,
	listed:  map[string]listedMatch{"connmark": after("match", "connmark", "mark")},
}

var markTarget = targetExtension{
	options: spec("set-xmark set-mark and-mark or-mark xor-mark"),
	lower:   lowerSetMark,
	listed:  func(l *restReader, t *Target) bool { return l.lit("MARK") && l.mark(t) },
}

var connmarkTarget = targetExtension{
	options: spec("set-xmark set-mark and-mark or-mark xor-mark save-mark=0 restore-mark=0 nfmask ctmask mask"),
	lower:   lowerSetMark,
	listed:  func(l *restReader, t *Target) bool { return l.lit("CONNMARK") && (l.copied(t) || l.mark(t)) },
}

func lowerMark(l *lowerer, m *Match) bool {
	return lowerAll(m, func(o *Option) bool {
		v, mask, ok := parseMasked(o.arg(), 32)
		l.test(&netfilter.MatchMark{Connection: m.Module == "connmark", Not: o.Not, Value: v, Mask: mask})
		return ok
	})
}

// lowerSetMark lowers MARK and CONNMARK (iptables extensions/libxt_MARK.c, libxt_CONNMARK.c).
func lowerSetMark(_ *lowerer, t *Target) netfilter.Statement {
	connection := t.Name == "CONNMARK"
	if connection {
		if c := copyMark(t); c != nil {
			return c
		}
	}
	name, arg := t.single()
	v, mask, ok := parseMasked(arg, 32)
	switch name {
	case "set-xmark":
	case "set-mark":
		mask |= v
	case "and-mark":
		v, mask = 0, ^v
	case "or-mark":
		mask = v
	case "xor-mark":
		mask = 0
	default:
		ok = false
	}
	if !ok {
		return nil
	}
	return &netfilter.SetMark{Connection: connection, Value: v, Mask: mask}
}

// copyMark lowers --save-mark and --restore-mark; nil where it is none of them.
func copyMark(t *Target) netfilter.Statement {
	s := &netfilter.CopyMark{Packet: ^uint32(0), Flow: ^uint32(0)}
	_, save := t.Option("save-mark")
	_, s.Restore = t.Option("restore-mark")
	if save == s.Restore {
		return nil
	}
	for i := range t.Options {
		o := &t.Options[i]
		n, err := strconv.ParseUint(o.arg(), 0, 32)
		switch o.Name {
		case "save-mark", "restore-mark":
			continue
		case "nfmask":
			s.Packet = uint32(n)
		case "ctmask":
			s.Flow = uint32(n)
		case "mask":
			s.Packet, s.Flow = uint32(n), uint32(n)
		default:
			return nil
		}
		if err != nil {
			return nil
		}
	}
	return s
}

// parseMasked reads "value" or "value/mask", decimal or with 0x; no mask is the whole.
func parseMasked(text string, bits int) (value, mask uint32, ok bool) {
	v, m, hasMask := strings.Cut(text, "/")
	a, err := strconv.ParseUint(v, 0, bits)
	if err != nil {
		return 0, 0, false
	}
	b := uint64(1)<<bits - 1
	if hasMask {
		if b, err = strconv.ParseUint(m, 0, bits); err != nil {
			return 0, 0, false
		}
	}
	return uint32(a), uint32(b), true
}

// mark reads "or 0x4000", "xset 0x4000/0xff00", …, which all are "--set-xmark VALUE/MASK": the mask's bits are cleared, then the value's
// are inverted (extensions/libxt_MARK.c, mark_tg_print).
func (l *restReader) mark(t *Target) bool {
	verb := l.next()
	value, mask, both := strings.Cut(l.next(), "/")
	v, err := strconv.ParseUint(value, 0, 32)
	m, err2 := strconv.ParseUint(mask, 0, 32)
	if err != nil || both != (verb == "xset") || both && err2 != nil {
		return false
	}
	switch verb {
	case "set":
		m = 0xffffffff
	case "or":
		m = v
	case "xor":
		m = 0
	case "and":
		v, m = 0, uint64(^uint32(v))
	case "xset":
	default:
		return false
	}
	return t.add("set-xmark", fmt.Sprintf("%#x/%#x", v, m))
}

// copied reads CONNMARK's "save" and "restore", with "mask M" or "nfmask N ctmask ~C"; the order differs and the second has a tilde.
func (l *restReader) copied(t *Target) bool {
	switch {
	case l.lit("save"):
		t.add("save-mark")
	case l.lit("restore"):
		t.add("restore-mark")
	default:
		return false
	}
	nf, ct := "0xffffffff", "0xffffffff"
	for {
		word := l.peek()
		if word != "mask" && word != "nfmask" && word != "ctmask" {
			return t.add("nfmask", nf) && t.add("ctmask", ct)
		}
		l.next()
		value := strings.TrimPrefix(l.next(), "~")
		if !isNumber0(value) {
			return false
		}
		if word != "ctmask" {
			nf = value
		}
		if word != "nfmask" {
			ct = value
		}
	}
}
