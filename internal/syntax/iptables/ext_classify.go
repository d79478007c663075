package iptables

import (
	"fmt"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/netfilter"
)

var classifyTarget = targetExtension{
	options: spec("set-class"),
	lower:   lowerClassify,
	listed:  (*restReader).classify,
}

func lowerClassify(_ *lowerer, t *Target) netfilter.Statement {
	name, arg := t.single()
	major, minor, ok := strings.Cut(arg, ":")
	a, err := strconv.ParseUint(major, 16, 16)
	b, err2 := strconv.ParseUint(minor, 16, 16)
	if name != "set-class" || !ok || err != nil || err2 != nil {
		return nil
	}
	return &netfilter.SetPriority{Priority: uint32(a)<<16 | uint32(b)}
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
