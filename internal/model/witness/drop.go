package witness

import (
	"time"

	"packetwalk.dev/internal/model/packet"
)

// Drop counts the packets of one flow that a kernel dropped for one reason.
type Drop struct {
	// Namespace is the inode number of the network namespace.
	Namespace uint64
	// Packet is the first of them as it was when it was dropped, with its mark. In is the interface at which it was: the one that it came in
	// by or was to leave by; "" where it had none yet.
	Packet packet.Packet
	// Reason is the kernel's own, without SKB_DROP_REASON_: "NETFILTER_DROP" (include/net/dropreason-core.h); "" before Linux 5.17.
	Reason string
	// Function is the kernel's function that dropped the packets: "nft_do_chain"; "" where the kernel does not show its symbols.
	Function string
	// Arrived is the index of the interface by which they came in; 0 for packets that the namespace itself sends.
	Arrived int
	// Link is the index of the interface In; 0 for none.
	Link int
	// Tracked says that conntrack saw them, and Reply that they answer a connection's first packet.
	Tracked, Reply bool
	// Began is their tuple when they came in or were sent, before translations; zero where conntrack does not say.
	Began       packet.Tuple
	Count       uint64    // since the last read
	First, Last time.Time // of all of them
}
