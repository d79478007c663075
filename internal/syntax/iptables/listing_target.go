package iptables

import (
	"fmt"
	"strconv"
	"strings"
)

// target reads the target's text if that is all that is left, and takes nothing otherwise.
func (l *restReader) target() bool {
	t := &l.rule.Target
	rest, name := l.rest, t.Name
	if read, ok := listedTargets[t.Name]; !ok || read(l, t) {
		if l.peek() == "" {
			return true
		}
	}
	l.rest, t.Name, t.Options = rest, name, nil
	return false
}

// listedTargets are the targets that print something for people. Those that are not here print nothing.
var listedTargets = map[string]func(*restReader, *Target) bool{
	"DNAT":       translated("to-destination"),
	"SNAT":       translated("to-source"),
	"MASQUERADE": portsOnly("masq ports:"),
	"REDIRECT":   portsOnly("redir ports"),
	"NETMAP":     translated("to"),
	"REJECT":     fixed("reject-with", "reject-with"),
	"MARK":       func(l *restReader, t *Target) bool { return l.lit("MARK") && l.mark(t) },
	"CONNMARK":   func(l *restReader, t *Target) bool { return l.lit("CONNMARK") && (l.copied(t) || l.mark(t)) },
	"LOG":        (*restReader).log,
	"NFLOG":      (*restReader).nflog,
	"NFQUEUE":    (*restReader).nfqueue,
	"SET":        (*restReader).sets,
	"CT":         (*restReader).ct,
	"TCPMSS": func(l *restReader, t *Target) bool {
		if l.lit("TCPMSS clamp to PMTU") {
			return t.add("clamp-mss-to-pmtu")
		}
		return fixed("TCPMSS set", "set-mss")(l, t)
	},
	"TOS":      fixed("TOS set", "set-tos"),
	"DSCP":     fixed("DSCP set", "set-dscp"),
	"TTL":      counted("TTL", "ttl"),
	"HL":       counted("HL", "hl"),
	"CLASSIFY": (*restReader).classify,
	"CHECKSUM": func(l *restReader, t *Target) bool { return l.lit("CHECKSUM fill") && t.add("checksum-fill") },
	"TPROXY":   (*restReader).tproxy,
}

func (t *Target) add(name string, args ...string) bool {
	t.Options = append(t.Options, Opt(name, args...))
	return true
}

// word takes a value for an option.
func (l *restReader) word(t *Target, option string) bool {
	w := l.next()
	return isValue(w) && t.add(option, w)
}

// fixed makes a reader of "WORDS VALUE".
func fixed(words, option string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool { return l.lit(words) && l.word(t, option) }
}

// translated makes a reader of "to:ADDRESS[:PORT] random random-fully persistent".
func translated(option string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool {
		value, ok := l.glued("to:")
		return ok && isValue(value) && t.add(option, value) && l.natFlags(t)
	}
}

// portsOnly makes a reader of MASQUERADE's and REDIRECT's text, which is empty where they have no options.
func portsOnly(words string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool {
		if l.lit(words) && !l.word(t, "to-ports") {
			return false
		}
		return l.natFlags(t)
	}
}

func (l *restReader) natFlags(t *Target) bool {
	for _, flag := range []string{"random", "random-fully", "persistent"} {
		if l.lit(flag) {
			t.add(flag)
		}
	}
	return true
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

// logFlags are the bits of "LOG flags" (include/uapi/linux/netfilter/nf_log.h) with the options in the order of iptables-save.
var logFlags = []struct {
	bit    uint64
	option string
}{{0x01, "log-tcp-sequence"}, {0x02, "log-tcp-options"}, {0x04, "log-ip-options"}, {0x08, "log-uid"}, {0x20, "log-macdecode"}}

// logWords are the same without -n.
var logWords = map[string]uint64{"tcp-sequence": 1, "tcp-options": 2, "ip-options": 4, "uid": 8, "macdecode": 0x20}

func (l *restReader) log(t *Target) bool {
	if !l.lit("LOG") {
		return false
	}
	var bits uint64
	level, prefix := "", ""
	for done := false; !done; {
		word := l.peek()
		bit, named := logWords[word]
		switch {
		case named:
			l.next()
			bits |= bit
		case word == "flags":
			l.next()
			n, err := strconv.ParseUint(l.next(), 10, 8)
			if err != nil {
				return false
			}
			bits = n
		case word == "level":
			l.next()
			level = l.next()
			if n, ok := logLevels[level]; ok {
				level = n
			}
			if !isNumber0(level) {
				return false
			}
		case word == "prefix":
			l.next()
			var ok bool
			if prefix, ok = l.quoted(); !ok {
				return false
			}
		default:
			done = true
		}
	}
	if prefix != "" {
		t.add("log-prefix", prefix)
	}
	if level != "" && level != "4" { // warning is the default, which iptables-save leaves out
		t.add("log-level", level)
	}
	for _, f := range logFlags {
		if bits&f.bit != 0 {
			t.add(f.option)
		}
		bits &^= f.bit
	}
	return bits == 0
}

func (l *restReader) nflog(t *Target) bool {
	for {
		name := l.peek()
		if _, ok := targetOptions["NFLOG"][name]; !ok {
			return true
		}
		l.next()
		l.skip()
		if text, ok := l.quoted(); ok {
			t.add(name, text)
		} else if !l.word(t, name) {
			return false
		}
	}
}

func (l *restReader) nfqueue(t *Target) bool {
	if !l.lit("NFQUEUE") {
		return false
	}
	switch {
	case l.lit("num"):
		if !l.word(t, "queue-num") {
			return false
		}
	case l.lit("balance"):
		if !l.word(t, "queue-balance") {
			return false
		}
	default:
		return false
	}
	if l.lit("bypass") {
		t.add("queue-bypass")
	}
	if l.lit("cpu-fanout") {
		t.add("queue-cpu-fanout")
	}
	return true
}

func (l *restReader) sets(t *Target) bool {
	for {
		name := l.peek()
		n, ok := targetOptions["SET"][name]
		if !ok {
			return len(t.Options) > 0
		}
		l.next()
		o := Opt(name)
		for range n {
			w := l.next()
			if !isValue(w) {
				return false
			}
			o.Args = append(o.Args, w)
		}
		t.Options = append(t.Options, o)
	}
}

func (l *restReader) ct(t *Target) bool {
	if l.lit("NOTRACK") {
		t.Name = "NOTRACK" // the same target by its older name, which iptables-save prints
		return true
	}
	if !l.lit("CT") {
		return false
	}
	for {
		name := l.peek()
		n, ok := targetOptions["CT"][name]
		if !ok {
			return true
		}
		l.next()
		if n == 0 {
			t.add(name)
		} else if !l.word(t, name) {
			return false
		}
	}
}

// counted makes a reader of "TTL set to 5", "… increment by 5" and "… decrement by 5".
func counted(word, option string) func(*restReader, *Target) bool {
	return func(l *restReader, t *Target) bool {
		for words, suffix := range map[string]string{" set to": "-set", " increment by": "-inc", " decrement by": "-dec"} {
			if l.lit(word + words) {
				return l.word(t, option+suffix)
			}
		}
		return false
	}
}

// classify reads "CLASSIFY set 1:5", hexadecimal numbers that iptables-save prints with four digits.
func (l *restReader) classify(t *Target) bool {
	if !l.lit("CLASSIFY set") {
		return false
	}
	major, minor, ok := strings.Cut(l.next(), ":")
	a, err := strconv.ParseUint(major, 16, 16)
	b, err2 := strconv.ParseUint(minor, 16, 16)
	return ok && err == nil && err2 == nil && t.add("set-class", fmt.Sprintf("%04x:%04x", a, b))
}

// tproxy reads "TPROXY redirect 1.1.1.1:80 mark 0x1/0xff".
func (l *restReader) tproxy(t *Target) bool {
	if !l.lit("TPROXY redirect") {
		return false
	}
	end := l.next()
	colon := strings.LastIndexByte(end, ':')
	if colon < 1 || !l.lit("mark") {
		return false
	}
	address, port := strings.Trim(end[:colon], "[]"), end[colon+1:]
	return isValue(address) && isValue(port) && t.add("on-port", port) && t.add("on-ip", address) && l.word(t, "tproxy-mark")
}
