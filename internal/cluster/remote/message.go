package remote

import (
	"io/fs"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// kinds are the errors that stay what they are when they cross.
var kinds = map[string]error{"unsendable": witness.ErrUnsendable, "not there": fs.ErrNotExist}

// preparing asks for a sender.
type preparing struct {
	Host    string
	Sending proof.Sending
}

type prepared struct {
	Handle uint64 // of the sender, for send and close
	Tuple  packet.Tuple
}

type watching struct {
	Host string
	What proof.Watching
}

// watched is the first answer to watching; those that follow say that something was seen.
type watched struct {
	Handle uint64
}

// asking is for the state of what a watcher sees, without the first Trace events and Packets, which are known.
type asking struct {
	Handle         uint64
	Trace, Packets int
}

// state is proof.Host.
type state struct {
	Trace   []witness.TraceEvent
	Packets []witness.Captured
	Flows   []witness.Flow
	Handles []chainHandles
	Absent  []chainAbsent
}

type chainHandles struct {
	Chain   proof.ChainID
	Handles []uint64
}

type chainAbsent struct {
	Chain  proof.ChainID
	Absent bool
}

// result is kernel.ProbeResult, whose error has become text.
type result struct {
	Tuple  packet.Tuple
	Answer witness.Answer
	ICMP   *witness.ICMPError
	Err    *failure
}

type rule struct {
	Host string
	Rule proof.RuleRef
}
