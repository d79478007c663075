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
	if a.Route == nil {
		return text
	}
	destination := a.Route.Destination.String()
	if a.Route.Destination.IsValid() && a.Route.Destination.Bits() == 0 {
		destination = "default"
	}
	text += fmt.Sprintf(" (table %s: %s)", cmp.Or(a.Route.TableName, tableName(a.Route.Table)), destination)
	if r := a.Rule; r != nil && a.Route.Table != fib.TableMain && a.Route.Table != fib.TableLocal {
		text += fmt.Sprintf(", by policy rule %d%s", r.Priority, policyTests(r))
	}
	return text
}

func policyTests(r *fib.Rule) string {
	var tests []string
	if r.Mask != 0 || r.Mark != 0 {
		tests = append(tests, fmt.Sprintf("fwmark %#x", r.Mark))
	}
	if r.From.IsValid() {
		tests = append(tests, "from "+r.From.String())
	}
	if r.In != "" {
		tests = append(tests, "iif "+r.In)
	}
	if len(tests) == 0 {
		return ""
	}
	return ": " + strings.Join(tests, " ")
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
