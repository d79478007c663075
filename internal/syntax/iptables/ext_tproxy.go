package iptables

import (
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var tproxyTarget = targetExtension{
	options: spec("on-port on-ip tproxy-mark"),
	lower:   lowerTPROXY,
	listed:  (*restReader).tproxy,
}

func lowerTPROXY(_ *lowerer, t *Target) netfilter.Statement {
	s := &netfilter.TransparentProxy{}
	port, _ := t.Option("on-port")
	ip, _ := t.Option("on-ip")
	s.To = strings.TrimPrefix(ip.arg()+" port "+port.arg(), " ")
	if o, ok := t.Option("tproxy-mark"); ok {
		v, mask, ok := parseMasked(o.arg(), 32)
		if !ok {
			return nil
		}
		s.Value, s.Mask = v, mask
	}
	return s
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
