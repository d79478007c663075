package iptables

import "strconv"

const nflogOptions = "nflog-group nflog-prefix nflog-range nflog-size nflog-threshold"

var logTarget = targetExtension{
	options: spec("log-level log-prefix log-tcp-sequence=0 log-tcp-options=0 log-ip-options=0 log-uid=0 log-macdecode=0"),
	note:    "log",
	listed:  (*restReader).log,
}

var nflogTarget = targetExtension{
	options: spec(nflogOptions),
	note:    "log to a listener",
	listed:  func(l *restReader, t *Target) bool { return t.readOwn(l, spec(nflogOptions)) },
}

var ulogTarget = targetExtension{
	options: spec("ulog-nlgroup ulog-prefix ulog-cprange ulog-qthreshold"),
	note:    "log to a listener",
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

// logLevels are syslog's, which -L without -n shows by name.
var logLevels = map[string]string{
	"emerg": "0", "panic": "0", "alert": "1", "crit": "2", "error": "3", "err": "3", "warn": "4", "warning": "4", "notice": "5", "info": "6",
	"debug": "7",
}
