package netfilter

import (
	"fmt"

	"packetwalk.dev/internal/model/packet"
)

// UnknownTest is a test that nothing here understands, or that is not shown. It neither holds nor fails: the Chooser is asked.
type UnknownTest struct {
	Text    string // in its own syntax: "-m foo --bar 1"; of one that is not shown why, in words
	Unshown bool
	// Existence says that the rule itself may not exist: the answer holds for every packet.
	Existence bool
	Tracking  Tracking
}

// Eval asks, anew for a packet that is another one to conntrack, has other addresses, or comes or goes another way: what the test looks at
// it is unknown.
func (u *UnknownTest) Eval(c *Context) Verdict {
	if u.Existence {
		return c.askTest(Unknown, u, 0, 0)
	}
	return c.askTest(Unknown, c.unknown(u), 0, 0)
}

// unknown makes a question about a statement that is not understood, or not shown, for the packet as it is.
func (c *Context) unknown(about fmt.Stringer) unknownQuestion {
	p := c.Packet
	return unknownQuestion{about, p.Tuple, p.TrackState(), p.Track.Reply, p.In, p.Out}
}

// unknownQuestion is a question with what tells packets apart.
type unknownQuestion struct {
	fmt.Stringer
	of      packet.Tuple
	state   packet.TrackState
	reply   bool
	in, out string
}

func (u *UnknownTest) String() string {
	if u.Unshown {
		return u.Text
	}
	return "not understood: " + u.Text
}

// UnknownEffect is an effect that the model does not understand, a target for example. What becomes of the packet is unknown.
type UnknownEffect struct {
	Text     string // in its own syntax: "-j FOO --bar 1"
	Tracking Tracking
}

// Eval cannot tell.
func (u *UnknownEffect) Eval(*Context) Verdict {
	return Verdict{Kind: Undecided, Detail: u.String()}
}

// Effect tells that it decides.
func (u *UnknownEffect) Effect() EffectKind { return Decides }

func (u *UnknownEffect) String() string { return "not understood: " + u.Text }

// UnreadEffect is the rest of a rule that could not be read. What becomes of the packet is unknown.
type UnreadEffect struct {
	Why    string
	Tracks bool // it makes the kernel track connections, else it may
}

// Eval cannot tell.
func (u *UnreadEffect) Eval(*Context) Verdict { return Verdict{Kind: Undecided, Detail: u.String()} }

// Effect tells that it decides.
func (u *UnreadEffect) Effect() EffectKind { return Decides }

func (u *UnreadEffect) String() string { return "the rule could not be read: " + u.Why }

func (u *UnreadEffect) tracking() truth {
	if u.Tracks {
		return yes
	}
	return maybe
}

// Understood reports whether nothing in the rule is unknown or unread.
func (r *Rule) Understood() bool {
	for _, s := range r.Statements {
		switch s.(type) {
		case *UnknownTest, *UnknownEffect, *UnreadEffect:
			return false
		}
	}
	return true
}
