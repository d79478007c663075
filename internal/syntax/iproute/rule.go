package iproute

import (
	"cmp"
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
	DSCPMask                    text `json:"dscp_mask"`
	Table, Action               text
	Goto                        json.RawMessage
	UIDStart                    *uint32 `json:"uid_start"`
	UIDEnd                      *uint32 `json:"uid_end"`
	SPort, DPort                text
	SPortMask                   text `json:"sport_mask"`
	SPortStart                  text `json:"sport_start"`
	SPortEnd                    text `json:"sport_end"`
	DPortMask                   text `json:"dport_mask"`
	DPortStart                  text `json:"dport_start"`
	DPortEnd                    text `json:"dport_end"`
	SuppressPrefix              *int `json:"suppress_prefixlen"`
	SuppressGroup               text `json:"suppress_ifgroup"`
}

// ruleFields are the names that ParseRules understands, and those that do not decide about packets. A rule with any other is Unknown.
var ruleFields = strings.Fields(`priority src srclen dst dstlen iif iif_detached oif oif_detached ipproto fwmark fwmask tos dscp dscp_mask
	table action goto unresolved uid_start uid_end sport sport_mask sport_start sport_end dport dport_mask dport_start dport_end
	suppress_prefixlen suppress_ifgroup not nop l3mdev protocol flow_to flow_from`)

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
		Priority: j.Priority, IPv6: ipv6, In: j.IIF, Out: j.OIF, Action: "lookup", SuppressPrefixLength: -1, SuppressGroup: -1,
		Not: fields["not"] != nil, L3MDev: fields["l3mdev"] != nil,
	}
	err := j.headers(&r)
	r.Unknown = err != nil
	if r.From, err = rulePrefix(j.Src, j.SrcLen); err != nil {
		return r, err
	}
	if r.To, err = rulePrefix(j.Dst, j.DstLen); err != nil {
		return r, err
	}
	if j.IPProto != "" { // "ipproto-6" where the machine has no /etc/protocols
		if r.Protocol, err = packet.ParseProtocol(strings.TrimPrefix(j.IPProto, "ipproto-")); err != nil {
			r.Unknown = true
		}
	}
	if j.UIDStart != nil && j.UIDEnd != nil {
		r.UIDs, r.HasUIDs = [2]uint32{*j.UIDStart, *j.UIDEnd}, true
	}
	j.action(&r, fields)
	for name := range fields {
		if !slices.Contains(ruleFields, name) {
			r.Unknown = true
		}
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

// headers fills in the selectors that have a mask: newer versions of iproute2 print the masks even where they select all bits.
func (j *ruleJSON) headers(r *fib.Rule) (err error) {
	if j.Mark != "" {
		if r.Mark, err = value[uint32](j.Mark, "", 32); err == nil {
			r.Mask, err = value[uint32](j.Mask, "0xffffffff", 32)
		}
	}
	if err == nil && j.TOS != "" {
		r.TOS, err = tosNumber(string(j.TOS))
	}
	if err == nil && j.DSCP != "" {
		if r.DSCP, err = dscpNumber(j.DSCP); err == nil {
			r.DSCPMask, err = value[uint8](j.DSCPMask, "0x3f", 6)
		}
	}
	if err == nil {
		r.SourcePorts, err = rulePorts(j.SPort, j.SPortMask, j.SPortStart, j.SPortEnd)
	}
	if err == nil {
		r.DestinationPorts, err = rulePorts(j.DPort, j.DPortMask, j.DPortStart, j.DPortEnd)
	}
	return err
}

// value reads a number of at most as many bits, and takes otherwise for one that is missing.
func value[T uint8 | uint16 | uint32](t, otherwise text, bits int) (T, error) {
	n, err := strconv.ParseUint(cmp.Or(string(t), string(otherwise)), 0, bits)
	return T(n), err
}

// rulePorts reads one port, with or without a mask, or a range.
func rulePorts(port, mask, first, last text) (p fib.RulePorts, err error) {
	if port != "" {
		first, last = port, port
	}
	if first == "" && last == "" && mask == "" {
		return p, nil
	}
	p.First, err = value[uint16](first, "", 16)
	if err == nil {
		p.Last, err = value[uint16](last, "", 16)
	}
	if err == nil {
		p.Mask, err = value[uint16](mask, "0xffff", 16)
	}
	switch {
	case err != nil:
		return fib.RulePorts{}, err
	case p.Mask == 0xffff:
		p.Mask = 0
	}
	return p, nil
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
