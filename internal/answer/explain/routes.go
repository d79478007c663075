package explain

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"packetwalk.dev/internal/model/fib"
)

// routeText returns "via 10.0.0.1 dev eth0 (main: 10.0.0.0/8)".
func routeText(a *fib.Answer) string {
	if a == nil {
		return "not known"
	}
	var text string
	switch {
	case a.Type == "none":
		return "none fits: network is unreachable"
	case a.Type == "local":
		text = "to the machine itself"
	case a.Type != "unicast" && a.Type != "":
		text = a.Type
	case a.Gateway.IsValid():
		text = "via " + a.Gateway.String() + " dev " + a.Link
	default:
		text = "dev " + a.Link
	}
	if a.Route != nil {
		destination := a.Route.Destination.String()
		if a.Route.Destination.IsValid() && a.Route.Destination.Bits() == 0 {
			destination = "default"
		}
		text += fmt.Sprintf(" (table %s: %s)", cmp.Or(a.Route.TableName, tableName(a.Route.Table)), destination)
	}
	// A rule without a route refuses the packet itself.
	if r := a.Rule; r != nil && (a.Route == nil || a.Route.Table != fib.TableMain && a.Route.Table != fib.TableLocal) {
		text += fmt.Sprintf(", by policy rule %d%s", r.Priority, policyTests(r))
	}
	return text
}

// policyTests returns what a policy rule selects in the words of ip-rule(8), after a colon: ": not from 10.0.0.0/24 to 10.1.0.0/16"; "" for
// a rule that selects every packet. Without "not" it leaves "from all" out.
func policyTests(r *fib.Rule) string {
	var tests []string
	add := func(test bool, format string, a ...any) {
		if test {
			tests = append(tests, fmt.Sprintf(format, a...))
		}
	}
	add(r.Not, "not")
	add(r.Not && !r.From.IsValid(), "from all")
	add(r.From.IsValid(), "from %s", r.From)
	add(r.To.IsValid(), "to %s", r.To)
	add(r.TOS != 0, "tos %#x", r.TOS)
	add(r.Mask == 0xffffffff, "fwmark %#x", r.Mark)
	add(r.Mask != 0 && r.Mask != 0xffffffff, "fwmark %#x/%#x", r.Mark, r.Mask)
	add(r.In != "", "iif %s", r.In)
	add(r.Out != "", "oif %s", r.Out)
	add(r.L3MDev, "l3mdev")
	add(r.HasUIDs, "uidrange %d-%d", r.UIDs[0], r.UIDs[1])
	add(r.Protocol != 0, "ipproto %s", r.Protocol)
	add(r.SourcePorts != fib.RulePorts{}, "sport %s", rulePorts(r.SourcePorts))
	add(r.DestinationPorts != fib.RulePorts{}, "dport %s", rulePorts(r.DestinationPorts))
	add(r.DSCPMask == 0x3f, "dscp %d", r.DSCP)
	add(r.DSCPMask != 0 && r.DSCPMask != 0x3f, "dscp %#x/%#x", r.DSCP, r.DSCPMask)
	if len(tests) == 0 {
		return ""
	}
	return ": " + strings.Join(tests, " ")
}

func rulePorts(p fib.RulePorts) string {
	switch {
	case p.Mask != 0:
		return fmt.Sprintf("%#x/%#x", p.First, p.Mask)
	case p.First == p.Last:
		return strconv.Itoa(int(p.First))
	}
	return fmt.Sprintf("%d-%d", p.First, p.Last)
}

func tableName(n int) string {
	switch n {
	case fib.TableLocal:
		return "local"
	case fib.TableMain, 0:
		return "main"
	case fib.TableDefault:
		return "default"
	}
	return strconv.Itoa(n)
}
