package drops

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// Cause is why packets were dropped.
type Cause struct {
	// Text names the rule, the route or the check: "filter FORWARD 1 (-j DROP)". Without an explanation it is the kernel's reason in words.
	Text string
	// Kernel is the kernel's own reason and the function: "NETFILTER_DROP in nft_do_chain".
	Kernel string
	// Advice says what to do; "" where the text says it.
	Advice string
	// Rejected says that the sender gets an answer: an ICMP error or a TCP RST.
	Rejected bool
	// Explained says that the walk ends as the kernel says, or that the kernel's reason needs no rule.
	Explained bool
	// Walk is the walk that ends so, or else what the packet would meet by the rules as they were read; nil where none could be made.
	Walk *walk.Result
}

// Network holds the states through which dropped packets are walked.
type Network struct {
	Source snapshot.Source
	// Owners returns names for the addresses and rules of some hosts.
	Owners func(hosts []string) *explain.Owners
}

// Explain returns why a host dropped packets. A cause that the walk does not show is not explained: the rules may have changed since, or the
// walk lacks something.
func (n Network) Explain(host string, d *witness.Drop) Cause {
	reason := reasonOf(d)
	c := Cause{Kernel: kernelReason(d), Text: reason.words, Advice: reason.advice, Explained: reason.words != "" && !reason.isRule}
	if !reason.walks() {
		if c.Text == "" {
			c.Text = "unexplained: the kernel says " + c.Kernel
		}
		return c
	}
	h, err := n.Source.Host(host)
	if err != nil {
		c.Text = cmp.Or(c.Text, "dropped") + "; the host could not be read: " + err.Error()
		return c
	}
	var causes []string
	certain := true
	for _, request := range requests(h, d) {
		result, err := walk.Walk(n.Source, request)
		if err != nil {
			continue
		}
		c.Walk, certain = result, !result.More
		for i := range result.Outcomes {
			o := &result.Outcomes[i]
			certain = certain && o.End.Kind != walk.Undecided && len(o.Unread) == 0
			if !isOutcome(o, host, d, &reason) {
				continue
			}
			c.Rejected = c.Rejected || o.End.Kind == walk.Rejected || o.End.Refused
			text := explain.Ending(o, n.Owners(result.Hosts()))
			if reason.isRefusal && o.End.Why == "" {
				text = fmt.Sprintf("nothing listens on %s", o.End.Packet.DestinationEnd())
			}
			if !slices.Contains(causes, text) {
				causes = append(causes, text)
			}
		}
		if len(causes) > 0 {
			break
		}
	}
	found := strings.Join(causes, ", or ")
	switch {
	case len(causes) > 0 && reason.isRoute && c.Text != "": // the kernel's reason comes first: the walk may have met another check
		c.Text += " (walk: " + found + ")"
	case len(causes) > 0 && (certain || reason.isRefusal):
		c.Explained, c.Text = true, found
	case len(causes) > 0:
		c.Explained, c.Text = false, "unexplained: perhaps "+found+"; the walk could not decide a rule or check on its way"
	case c.Text == "":
		c.Text = "unexplained: the kernel says " + c.Kernel
	case !c.Explained:
		c.Text = "unexplained: " + c.Text + ", and no walk of the packet shows which"
	}
	return c
}

// kernelReason returns the kernel's reason and function, as far as it gives them.
func kernelReason(d *witness.Drop) string {
	reason, function := cmp.Or(d.Reason, notSpecified), ""
	if d.Function != "" {
		function = " in " + d.Function
	}
	return reason + function
}

// requests returns the walks that a packet may have begun with, the likelier first: as it came in or was sent, without the mark that rules
// gave it, and with it.
func requests(h *snapshot.Host, d *witness.Drop) (all []walk.Request) {
	p := packet.Packet{Tuple: d.Packet.Tuple, TCPFlags: d.Packet.TCPFlags, TTL: d.Packet.TTL, TOS: d.Packet.TOS, Length: d.Packet.Length,
		Offset: d.Packet.Offset, More: d.Packet.More, About: d.Packet.About}
	if d.Began.Source.IsValid() {
		p.Tuple = d.Began
	}
	request := walk.Request{Host: h.Name, Packet: p, OneWay: true}
	if d.Arrived == 0 {
		request.Packet.SomeOwner = true
		return withMark(request, d.Packet.Mark)
	}
	for _, link := range arrivals(h, d.Arrived) {
		if link.Type == "loopback" { // the host sent it
			return withMark(request, d.Packet.Mark)
		}
		request.Forwarded, request.Arrives = true, link.Name
		if l := arrivalLink(h, link); l != nil {
			request.Packet.Frame.Destination = l.MAC
		}
		all = append(all, withMark(request, d.Packet.Mark)...)
	}
	return all
}

func withMark(r walk.Request, mark uint32) []walk.Request {
	if mark == 0 {
		return []walk.Request{r}
	}
	marked := r
	marked.Packet.Mark = mark
	return []walk.Request{r, marked}
}

// arrivals returns the links by which a packet may have come in that the kernel says to have come in by one: of a bridge its ports.
func arrivals(h *snapshot.Host, index int) (links []*fib.Link) {
	for i := range h.FIB.Links {
		l := &h.FIB.Links[i]
		if l.Index == index && l.Bridge == nil {
			return []*fib.Link{l}
		}
	}
	for i := range h.FIB.Links {
		if l := &h.FIB.Links[i]; l.Master != "" {
			if bridge := h.FIB.Link(l.Master); bridge != nil && bridge.Index == index {
				links = append(links, l)
			}
		}
	}
	return links
}

// arrivalLink returns the link whose address a packet has that the host takes: the bridge's for its ports.
func arrivalLink(h *snapshot.Host, l *fib.Link) *fib.Link {
	if bridge := h.FIB.Link(l.Master); bridge != nil && bridge.Bridge != nil {
		return bridge
	}
	return l
}

// isOutcome reports whether a way ends as the kernel says.
func isOutcome(o *walk.Outcome, host string, d *witness.Drop, r *reason) bool {
	end := &o.End
	if end.Host != host || !sameFlow(&end.Packet.Tuple, &d.Packet.Tuple) || len(o.There) == 0 {
		return false
	}
	byRule := slices.ContainsFunc(o.There[max(0, len(o.There)-2):], func(s walk.Step) bool {
		return s.Visit != nil && (s.Visit.Verdict.Kind == netfilter.Drop || s.Visit.Verdict.Kind == netfilter.Reject)
	})
	switch dropped := end.Kind == walk.Dropped || end.Kind == walk.Rejected; {
	case r.isRefusal:
		return end.Kind == walk.Delivered && end.Refused
	case r.isRule:
		return dropped && byRule
	default:
		return dropped && !byRule
	}
}

// sameFlow reports whether two tuples may be one: ports that a walk does not know match any.
func sameFlow(walked, seen *packet.Tuple) bool {
	port := func(a, b packet.Port) bool { return !a.Known() || a == b }
	return walked.Protocol == seen.Protocol && walked.Source == seen.Source && walked.Destination == seen.Destination &&
		port(walked.SourcePort, seen.SourcePort) && port(walked.DestinationPort, seen.DestinationPort)
}

// String returns the cause in a line.
func (c *Cause) String() string {
	if c.Rejected {
		return fmt.Sprintf("%s (rejected)", c.Text)
	}
	return c.Text
}
