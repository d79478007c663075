package proof

import (
	"fmt"
	"strings"
	"time"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
)

// Report is how far a prediction and the kernel agree.
type Report struct {
	Steps  int // compared
	Agreed int
	// Outcome is the index of the predicted outcome that agrees with the kernel longest.
	Outcome int
	// Candidates are the indexes of all outcomes that agree as well: they differ only in what was not seen.
	Candidates []int
	// Shown are the hosts at which everything that the candidates predict was compared, and agrees.
	Shown  []string
	silent int         // of Agreed: nothing was predicted to be seen, and nothing was
	First  *Difference // nil where all steps agree
	firm   *Difference // the first that a choice before it is to blame for; nil where there is none
	// NotTraced is how many steps were in tables of iptables-legacy or at hook ingress, which the kernel's trace leaves out.
	NotTraced int
	// Repeated is how many rules in the trace were not compared, because a packet that was sent again met them.
	Repeated int
	// Uncertain are the connections that are not there and were not compared, because something may have ended them: the answer's own
	// answer, which is not walked, or their next packet, by chance. So are rules that a packet met that carries another one in VXLAN and looks
	// like the probe's.
	Uncertain []string
	// Unseen are hosts on the way whose namespaces cannot be had here: their steps were not compared.
	Unseen []string
	// Unanswered says that the program that got the packet sent nothing back, so that the way back could not be compared.
	Unanswered bool
	// Abandoned says that there are more outcomes than were looked at, and that the one that the kernel took may be among the others.
	Abandoned bool
	// Undecided says that the prediction ends before the packet's way does, because it is unknown how the packet goes on.
	Undecided bool
	// Receiver is the host that was seen to get the packet, "" where none was, and Received the packet as it came there.
	Receiver string
	Received packet.Tuple
	// Missed are the hosts that were to get the packet, or may have, and that it was not seen at.
	Missed []string
	Answer witness.Result // what the sender learnt
	// Pinned is the prediction with the ports that the kernel chose by chance, and Way its outcome that was compared.
	Pinned *walk.Result
	Way    *walk.Outcome
	// Ends says why and where the connection's next packet ended the connection; "" where it did not.
	Ends string
	// NotSent says why the packet was not sent, so that nothing was compared; "" where it was.
	NotSent string
	// Changed says for each earlier try what changed meanwhile at hosts on the way, so that the packet was sent again.
	Changed []string
	Took    time.Duration // from the request to the end of the comparison
}

// Difference is a step where prediction and kernel part.
type Difference struct {
	Host                string
	Back                bool // on the way back
	Predicted, Observed string

	position int  // of the predicted step among all
	more     bool // it is something that was not predicted: a choice behind the position can be to blame, too
	// Stray says that it is a packet where none is predicted to arrive.
	Stray bool
	// forgotten says that it is about a connection that conntrack was to keep, and has not.
	forgotten bool
	event     *witness.TraceEvent // observed; nil where it was none
	rule      *RuleRef            // the rule that decided what is different; nil where none did
}

// Complete reports whether every step was compared and agrees.
func (r Report) Complete() bool {
	return r.NotSent == "" && r.First == nil && r.NotTraced == 0 && len(r.Unseen) == 0 && !r.Unanswered && !r.Undecided
}

// String returns one line where all agree: "kernel: 23 of 23 steps agree"; otherwise what was not compared, and the first step where
// prediction and kernel part, on lines of their own.
func (r Report) String() string {
	if r.NotSent != "" {
		return "kernel: not asked, because the packet could go round without end: " + r.NotSent
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kernel: %d of %d steps agree", r.Agreed, r.Steps)
	if r.NotTraced > 0 {
		fmt.Fprintf(&b, "; %d in iptables-legacy tables or at ingress, not traced", r.NotTraced)
	}
	if r.Repeated > 0 {
		fmt.Fprintf(&b, "; not compared: %d rules that the packet met when it was sent again", r.Repeated)
	}
	if len(r.Unseen) > 0 {
		fmt.Fprintf(&b, "; not seen: %s", strings.Join(r.Unseen, ", "))
	}
	if r.Unanswered {
		b.WriteString("; the receiving program sent nothing back: the way back was not compared")
	}
	if r.Undecided {
		b.WriteString("; what follows is unknown")
	}
	if r.Ends != "" {
		b.WriteString("; the connection does not last: " + r.Ends)
	}
	if d := r.First; d != nil {
		way := ""
		if d.Back {
			way = ", on the way back"
		}
		fmt.Fprintf(&b, "\nthey part on %s%s:\n  predicted: %s\n  kernel:    %s", d.Host, way, d.Predicted, d.Observed)
	}
	return b.String()
}
