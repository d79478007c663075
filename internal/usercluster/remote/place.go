package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/witness"
)

// Place returns the place of a host of the node, for proof.Live.
func (n *Node) Place(host string) proof.Place { return place{n, host} }

type place struct {
	node *Node
	host string
}

// farewell bounds the closing of what was opened: the node does it by itself when the conversation ends.
const farewell = 5 * time.Second

func (p place) Prepare(ctx context.Context, s proof.SendRequest) (proof.Sender, error) {
	var r prepareReply
	if err := p.node.ask(ctx, opPrepare, prepareRequest{p.host, s}, &r); err != nil {
		return nil, err
	}
	return &sender{p.node, r}, nil
}

func (p place) RuleText(ctx context.Context, r proof.RuleRef) (text string, err error) {
	err = p.node.ask(ctx, opRuleText, rule{p.host, r}, &text)
	return text, err
}

type sender struct {
	node *Node
	prepareReply
}

func (s *sender) Tuple() packet.Tuple { return s.prepareReply.Tuple }

func (s *sender) Send(ctx, patience context.Context) (witness.Result, error) {
	a, err := s.node.begin(opSend, s.Handle)
	if err != nil {
		return witness.Result{}, err
	}
	defer a.close()
	got, err := a.answer(patience)
	if err != nil && ctx.Err() == nil && patience.Err() != nil {
		a.end()
		limited, cancel := context.WithTimeout(ctx, farewell)
		defer cancel()
		got, err = a.answer(limited)
	}
	if err != nil {
		a.endUnless(err)
		return witness.Result{}, err
	}
	var r result
	if err := json.Unmarshal(got.Body, &r); err != nil {
		return witness.Result{}, fmt.Errorf("answer to %s: %w", opSend, err)
	}
	out := witness.Result{Tuple: r.Tuple, Answer: r.Answer, ICMP: r.ICMP}
	if r.Err != nil {
		out.Err = r.Err
	}
	return out, nil
}

func (s *sender) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	return s.node.ask(ctx, opClose, s.Handle, nil)
}

func (p place) Watch(ctx context.Context, what proof.WatchRequest, activity chan<- struct{}) (proof.Watcher, error) {
	a, err := p.node.begin(opWatch, watchRequest{p.host, what})
	if err != nil {
		return nil, err
	}
	got, err := a.answer(ctx)
	if err != nil {
		a.end()
		a.close()
		return nil, err
	}
	w := &watcher{node: p.node, asked: a, ended: make(chan struct{})}
	var first watchReply
	if err := json.Unmarshal(got.Body, &first); err != nil {
		a.end()
		a.close()
		return nil, fmt.Errorf("answer to %s: %w", opWatch, err)
	}
	w.handle = first.Handle
	go w.signals(activity)
	return w, nil
}

// watcher is one on the node. What it has seen is asked for, a part at a time.
type watcher struct {
	node   *Node
	asked  *call
	handle uint64
	ended  chan struct{}
	seen   proof.Host
	err    error // its last answer
}

// signals passes on that something was seen, until the last answer.
func (w *watcher) signals(activity chan<- struct{}) {
	defer close(w.ended)
	for {
		got, err := w.asked.next(context.Background()) // ends with the conversation
		if err != nil || !got.More {
			w.err = err
			return
		}
		select {
		case activity <- struct{}{}:
		default:
		}
	}
}

// Pending returns false always: the node waits for what it has not read before it says what it has seen.
func (w *watcher) Pending() bool { return false }

// maxSeen bounds the packets and events of one probe: a machine sees it some 10 to 100 times.
const maxSeen = 100_000

func (w *watcher) Now(ctx context.Context) (proof.Host, error) {
	var st state
	if err := w.node.ask(ctx, opNow, stateRequest{w.handle, len(w.seen.Trace), len(w.seen.Packets)}, &st); err != nil {
		return w.seen, err
	}
	if len(w.seen.Trace)+len(st.Trace)+len(w.seen.Packets)+len(st.Packets) > maxSeen {
		return w.seen, fmt.Errorf("the node says that it has seen more than %d packets", maxSeen)
	}
	w.seen.Trace, w.seen.Packets, w.seen.Flows = append(w.seen.Trace, st.Trace...), append(w.seen.Packets, st.Packets...), st.Flows
	w.seen.Handles, w.seen.Absent = map[proof.ChainID][]uint64{}, map[proof.ChainID]bool{}
	for _, h := range st.Handles {
		w.seen.Handles[h.Chain] = h.Handles
	}
	for _, a := range st.Absent {
		w.seen.Absent[a.Chain] = a.Absent
	}
	return w.seen, nil
}

// Close returns when the node has closed traces and captures.
func (w *watcher) Close() error {
	w.asked.end()
	defer w.asked.close()
	select {
	case <-w.ended:
	case <-time.After(farewell):
		return errors.New("the node does not say that it has stopped watching")
	}
	if errors.Is(w.err, context.Canceled) {
		return nil
	}
	return w.err
}
