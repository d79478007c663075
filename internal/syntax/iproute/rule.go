package iproute

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/packet"
)

// ruleJSON is one rule of "ip -j rule" (iproute2: ip/iprule.c, print_rule).
type ruleJSON struct {
	Priority                    int
	Src, Dst, IIF, OIF, IPProto string
	SrcLen, DstLen              *int
	Mark                        text `json:"fwmark"`
	Mask                        text `json:"fwmask"`
	TOS, DSCP                   text
	Table, Action               text
	Goto                        json.RawMessage
	UIDStart                    *uint32 `json:"uid_start"`
	UIDEnd                      *uint32 `json:"uid_end"`
	SPort, DPort                text
	SPortStart                  text `json:"sport_start"`
	SPortEnd                    text `json:"sport_end"`
	DPortStart                  text `json:"dport_start"`
	DPortEnd                    text `json:"dport_end"`
	SuppressPrefix              *int `json:"suppress_prefixlen"`
	SuppressGroup               text `json:"suppress_ifgroup"`
}

// ruleFields are the names that ParseRules understands, and those that do not decide about packets. A rule with any other is Unknown.
var ruleFields = strings.Fields(`priority src srclen dst dstlen iif iif_detached oif oif_detached ipproto fwmark fwmask tos dscp table action
	goto unresolved uid_start uid_end sport dport sport_start sport_end dport_start dport_end suppress_prefixlen suppress_ifgroup not nop
	l3mdev protocol flow_to flow_from`)

// ParseRules reads "ip -j rule", or "ip -6 -j rule" with ipv6 set: the text does not tell them apart.
func ParseRules(data []byte, ipv6 bool) ([]fib.Rule, error) {
	raw, err := decode[json.RawMessage](data, "policy rules")
	if err != nil {
		return nil, err
	}
	rules := make([]fib.Rule, 0, len(raw))
	for i, one := range raw {
		r, err := parseRule(one, ipv6)
		if err != nil {
			return nil, fmt.Errorf("policy rule number %d: %w", i+1, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func parseRule(data []byte, ipv6 bool) (fib.Rule, error) {
	var j ruleJSON
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &j); err != nil {
		return fib.Rule{}, err
	}
	if err := json.Unmarshal(data, &fields); err != nil {
		return fib.Rule{}, err
	}
	r := fib.Rule{
		Priority: j.Priority, IPv6: ipv6, In: j.IIF, Out: j.OIF, TOS: tosNumber(string(j.TOS)), Action: "lookup", SuppressPrefixLength: -1,
		SuppressGroup: -1, Not: fields["not"] != nil, L3MDev: fields["l3mdev"] != nil,
	}
	var err error
	if r.From, err = rulePrefix(j.Src, j.SrcLen); err != nil {
		return r, err
	}
	if r.To, err = rulePrefix(j.Dst, j.DstLen); err != nil {
		return r, err
	}
	if j.IPProto != "" {
		if r.Protocol, err = packet.ParseProtocol(j.IPProto); err != nil {
			r.Unknown = true
		}
	}
	if fields["fwmark"] != nil {
		r.Mark, r.Mask = uint32(j.Mark.number(32)), 0xffffffff
		if fields["fwmask"] != nil {
			r.Mask = uint32(j.Mask.number(32))
		}
	}
	r.SourcePorts = portRange(j.SPort, j.SPortStart, j.SPortEnd)
	r.DestinationPorts = portRange(j.DPort, j.DPortStart, j.DPortEnd)
	if j.UIDStart != nil && j.UIDEnd != nil {
		r.UIDs, r.HasUIDs = [2]uint32{*j.UIDStart, *j.UIDEnd}, true
	}
	j.action(&r, fields)
	for name := range fields {
		if !slices.Contains(ruleFields, name) {
			r.Unknown = true
		}
	}
	if j.DSCP != "" && !dscpAsTOS(&r, j.DSCP) {
		r.Unknown = true
	}
	if r.Unknown {
		r.Text = string(data)
	}
	return r, nil
}

// action fills in what the rule does. A JSON of iproute2 has "table" or "goto" or "nop" or "action".
func (j *ruleJSON) action(r *fib.Rule, fields map[string]json.RawMessage) {
	r.Table, r.TableName = tableNumber(string(j.Table))
	if j.SuppressPrefix != nil {
		r.SuppressPrefixLength = *j.SuppressPrefix
	}
	if j.SuppressGroup != "" {
		r.SuppressGroup = groupNumber(string(j.SuppressGroup))
		r.Unknown = r.Unknown || r.SuppressGroup < 0
	}
	switch {
	case fields["goto"] != nil:
		r.Action = "goto"
		n, err := strconv.Atoi(strings.Trim(string(j.Goto), `"`))
		r.Goto = n
		if err != nil { // "none": the target is not there, the rule has no effect
			r.Action = "nop"
		}
	case fields["nop"] != nil:
		r.Action = "nop"
	case j.Action != "":
		r.Action = string(j.Action)
	case fields["table"] == nil && !r.L3MDev:
		r.Unknown = true
	}
	if r.Action != "lookup" {
		r.Table, r.TableName = 0, ""
	}
}

// dscpAsTOS takes a DSCP for a TOS where that means the same: for IPv6 always but for 0, for IPv4 where the kernel's comparison of TOS,
// which leaves the three upper bits out, is not wider.
func dscpAsTOS(r *fib.Rule, dscp text) bool {
	n := dscp.number(6)
	if n == 0 || !r.IPv6 {
		return false
	}
	r.TOS = uint8(n << 2)
	return true
}

func rulePrefix(addr string, bits *int) (netip.Prefix, error) {
	if addr == "" || addr == "all" {
		return netip.Prefix{}, nil
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return netip.Prefix{}, err
	}
	n := a.BitLen()
	if bits != nil {
		n = *bits
	}
	p, err := a.WithZone("").Prefix(n)
	return p, err
}

func portRange(one, start, end text) [2]uint16 {
	if one != "" {
		n := uint16(one.number(16))
		return [2]uint16{n, n}
	}
	return [2]uint16{uint16(start.number(16)), uint16(end.number(16))}
}
