package proof

import (
	"context"

	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// Places gives the place of a host. An error that is fs.ErrNotExist says that it cannot be had: what happens there is then not compared.
type Places func(host string) (Place, error)

// Place is a host's network namespace as [Live] needs it: of this machine ([Local]), or of one at the other end of a conversation. What
// goes to a place and comes from it is plain data.
type Place interface {
	// Prepare makes ready to send one packet; nothing is sent yet. The error is kernel.ErrUnsendable where the packet is to blame.
	Prepare(ctx context.Context, s SendRequest) (Sender, error)
	// Watch begins to look for packets. Each time that something has been seen, activity is offered a value, without waiting.
	Watch(ctx context.Context, w WatchRequest, activity chan<- struct{}) (Watcher, error)
	// RuleText is how nft prints a rule that the kernel has now; "" where it has none such.
	RuleText(ctx context.Context, r RuleRef) (string, error)
}

// SendRequest is a packet to be sent: by a socket of the host's own (kernel.PrepareProbe), or with a Link as a frame by that
// (kernel.PrepareFrame).
type SendRequest struct {
	Link    string
	Packet  packet.Packet
	Payload []byte // of a datagram or an echo
}

// Sender has one packet to send.
type Sender interface {
	// Tuple is what is known of the packet beforehand: its local port always.
	Tuple() packet.Tuple
	// Send is kernel.Probe's.
	Send(ctx, patience context.Context) (witness.Result, error)
	Close() error
}

// WatchRequest is what is to be seen in a namespace.
type WatchRequest struct {
	Captured []witness.PacketFilter // which packets are captured, all without any (kernel.OpenCapture)
	// Traced packets, and errors about those of About, are traced (kernel.OpenTrace): none without any.
	Traced []witness.PacketFilter
	About  []packet.Tuple
	// Flows are the connections that matter, by the packets that begin or answer them; all without any.
	Flows []packet.Tuple
	// Chains are base chains of which is asked whether the kernel has them.
	Chains []ChainID
}

// Watcher sees what happens in a namespace.
type Watcher interface {
	// Pending reports whether something was seen that is not read yet: a busy machine does not get to it at once.
	Pending() bool
	// Now is what has been seen since the watching began, with the connections that there are now.
	Now(ctx context.Context) (Host, error)
	Close() error
}

// RuleRef finds a rule in the kernel: by its handle, or by its number in its chain, from 1.
type RuleRef struct {
	ChainID
	Handle uint64
	Number int
}
