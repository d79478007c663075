package remote

import (
	"io/fs"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// kinds are the errors that stay what they are when they cross.
var kinds = map[string]error{"unsendable": witness.ErrUnsendable, "not there": fs.ErrNotExist}

// prepareRequest asks for a sender.
type prepareRequest struct {
	Host    string
	Sending proof.SendRequest
}

type prepareReply struct {
	Handle uint64 // of the sender, for send and close
	Tuple  packet.Tuple
}

type watchRequest struct {
	Host string
	What proof.WatchRequest
}

// watchReply is the first answer to watching; those that follow say that something was seen.
type watchReply struct {
	Handle uint64
}

// stateRequest is for the state of what a watcher sees, without the first Trace events and Packets, which are known.
type stateRequest struct {
	Handle         uint64
	Trace, Packets int
}

// state is proof.Host.
type state struct {
	Trace   []witness.TraceEvent
	Packets []witness.CapturedPacket
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

// lookUpRequest asks the resolver of a host for a name.
type lookUpRequest struct{ Host, Name string }

type rule struct {
	Host string
	Rule proof.RuleRef
}
