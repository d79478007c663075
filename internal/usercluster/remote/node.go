package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/witness"
)

// Node is a node at the other end of a stream. It is safe for concurrent use.
type Node struct {
	conn io.ReadWriteCloser
	out  *frameWriter
	done chan struct{} // closed when the stream has ended

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan answer
	err     error // why the stream ended
}

// greetingTime bounds the wait for the first answer.
const greetingTime = 20 * time.Second

// VersionError says that the program on the node is another version.
type VersionError struct{ Node, Ours string }

func (e *VersionError) Error() string {
	return fmt.Sprintf("the image has packetwalk %s, and this is %s: use the image of this version (--image)", termsafe.Text(e.Node), e.Ours)
}

// Open begins a conversation with what [Serve] answers at the other end. version is this program's: another one there is a *VersionError.
// Node.Close closes conn; so does Open where it fails.
func Open(ctx context.Context, conn io.ReadWriteCloser, version string) (*Node, error) {
	n := &Node{conn: conn, done: make(chan struct{}), waiting: map[uint64]chan answer{}}
	n.out = &frameWriter{w: conn, stuck: func() {
		n.end(errors.New("the node does not read what it is asked"))
		_ = conn.Close()
	}}
	go n.read()
	ctx, cancel := context.WithTimeout(ctx, greetingTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })() // also ends a write that the other side does not read
	var hello greeting
	err := n.ask(ctx, opHello, greeting{Protocol: protocol, Version: version}, &hello)
	switch {
	case err != nil:
	case hello.Protocol != protocol:
		err = errors.New("what answers is not packetwalk")
	case hello.Version != version:
		err = &VersionError{Node: hello.Version, Ours: version}
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Close ends the conversation.
func (n *Node) Close() error {
	err := n.conn.Close()
	n.end(errors.New("the conversation is over"))
	return err
}

// Abandon ends a conversation for a reason, which who waits for answers then gets.
func (n *Node) Abandon(why error) {
	n.end(why)
	_ = n.conn.Close()
}

// Done returns a channel that is closed when the conversation has ended, also by breaking off.
func (n *Node) Done() <-chan struct{} { return n.done }

// end keeps why the conversation ended, and wakes all who wait for answers.
func (n *Node) end(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err == nil {
		n.err = err
		close(n.done)
	}
}

// read gives answers to who asked.
func (n *Node) read() {
	for {
		var a answer
		if err := readFrame(n.conn, &a); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the stream to the node broke off")
			}
			n.end(err)
			return
		}
		n.mu.Lock()
		to := n.waiting[a.ID]
		n.mu.Unlock()
		if to == nil {
			continue // who asked waits no longer
		}
		select {
		case to <- a:
		case <-n.done:
			return
		}
	}
}

// begin asks; what is returned gives the answers, one by one, and must be closed.
func (n *Node) begin(op operation, body any) (*call, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.next++
	a := &call{node: n, id: n.next, answers: make(chan answer, 64)}
	n.waiting[a.id] = a.answers
	n.mu.Unlock()
	if err := n.out.write(question{ID: a.id, Op: op, Body: data}); err != nil {
		a.close()
		select { // the reader knows why
		case <-n.done:
		case <-time.After(time.Second):
		}
		return nil, n.streamError(err)
	}
	return a, nil
}

// streamError returns why the stream ended, or err if that is unknown.
func (n *Node) streamError(err error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return n.err
	}
	return err
}

// call is a question without its last answer.
type call struct {
	node    *Node
	id      uint64
	answers chan answer
}

// answering bounds the wait for an answer: on the node it can take as long as the programs that are run for it.
const answering = program.Limit + 30*time.Second

// answer waits for the next answer. An error that is its own is the last.
func (a *call) answer(ctx context.Context) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answering, errors.New("the node does not answer"))
	defer cancel()
	return a.next(ctx)
}

// next does what answer does without a limit of time.
func (a *call) next(ctx context.Context) (answer, error) {
	select {
	case got := <-a.answers:
		if got.Err != nil {
			return got, got.Err
		}
		return got, nil
	case <-a.node.done:
		return answer{}, a.node.streamError(nil)
	case <-ctx.Done():
		return answer{}, context.Cause(ctx)
	}
}

// end asks the node to come to the end; the last answer still comes.
func (a *call) end() { _ = a.node.out.write(question{ID: a.id, End: true}) }

// endUnless ends a question whose error is not its last answer.
func (a *call) endUnless(err error) {
	var last *failure
	if !errors.As(err, &last) && a.node.streamError(nil) == nil {
		a.end()
	}
}

func (a *call) close() {
	a.node.mu.Lock()
	delete(a.node.waiting, a.id)
	a.node.mu.Unlock()
	for { // the reader may be about to give it another one
		select {
		case <-a.answers:
		default:
			return
		}
	}
}

// ask asks what has one answer.
func (n *Node) ask(ctx context.Context, op operation, body, into any) error {
	a, err := n.begin(op, body)
	if err != nil {
		return err
	}
	defer a.close()
	got, err := a.answer(ctx)
	if err != nil {
		a.endUnless(err)
		return err
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(got.Body, into); err != nil {
		return fmt.Errorf("answer to %s: %w", op, err)
	}
	return nil
}

// Ping asks nothing: an answer says that the node is there, and keeps a stream open that would be cut when idle.
func (n *Node) Ping(ctx context.Context) error { return n.ask(ctx, opPing, nil, nil) }

// Hosts returns the names of the node's hosts, with the inode numbers of their namespaces: "node/NAME", "pod/NAMESPACE/NAME", "netns/NAME".
func (n *Node) Hosts(ctx context.Context) (map[string]uint64, error) {
	var hosts map[string]uint64
	if err := n.ask(ctx, opHosts, nil, &hosts); err != nil {
		return nil, err
	}
	if len(hosts) > maxHosts {
		return nil, fmt.Errorf("%d hosts are more than a node can have (%d)", len(hosts), maxHosts)
	}
	for name := range hosts {
		if !capture.HostName(name) {
			return nil, fmt.Errorf("%q is no host's name", name)
		}
	}
	return hosts, nil
}

// mostLookedUp is the most addresses that a node may say a name has.
const mostLookedUp = 1000

// LookUp asks the resolver of a host of the node for a name, as the host's processes do.
func (n *Node) LookUp(ctx context.Context, host, name string) (found witness.Lookup, err error) {
	if err := n.ask(ctx, opLookUp, lookUpRequest{host, name}, &found); err != nil {
		return witness.Lookup{}, err
	}
	valid := !slices.ContainsFunc(found.Addresses, func(a netip.Addr) bool { return !a.IsValid() || a.Zone() != "" || a.Is4In6() })
	if !valid || len(found.Addresses) > mostLookedUp || found.More < 0 {
		return witness.Lookup{}, fmt.Errorf("invalid answer to %s", opLookUp)
	}
	found.Name, found.Server, found.Unanswered = termsafe.Text(found.Name), termsafe.Text(found.Server), termsafe.Text(found.Unanswered)
	return found, nil
}

// Limits of what a node can have: a node of AKS has 250 pods at most; names of tools and what these say of their versions, in bytes.
const (
	maxHosts   = 10_000
	maxTools   = 50
	maxVersion = 200
)

// Tools returns the versions of the node's tools, by their names.
func (n *Node) Tools(ctx context.Context) (map[string]string, error) {
	var tools map[string]string
	if err := n.ask(ctx, opTools, nil, &tools); err != nil {
		return nil, err
	}
	if len(tools) > maxTools {
		return nil, fmt.Errorf("versions of %d tools are more than there are", len(tools))
	}
	told := map[string]string{}
	for name, version := range tools {
		if len(name) <= maxVersion && len(version) <= maxVersion {
			told[termsafe.Text(name)] = termsafe.Text(version)
		}
	}
	return told, nil
}

// Fetch gives the state of a host of the node. An error that is fs.ErrNotExist says that there is none.
func (n *Node) Fetch(ctx context.Context, host string) (*capture.Raw, error) {
	packed, err := n.pieces(ctx, host)
	if err != nil {
		return nil, err
	}
	file, err := capture.Read(bytes.NewReader(packed), int64(len(packed)))
	if err != nil {
		return nil, fmt.Errorf("state of %s: %w", host, err)
	}
	raw, err := file.Origin().Fetch(host)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the node gave another host's state in place of that of %s", host)
	}
	return raw, err
}

func (n *Node) pieces(ctx context.Context, host string) ([]byte, error) {
	a, err := n.begin(opFetch, host)
	if err != nil {
		return nil, err
	}
	defer a.close()
	var packed []byte
	for {
		got, err := a.answer(ctx)
		if err != nil {
			a.endUnless(err)
			return nil, err
		}
		if !got.More {
			return packed, nil
		}
		var part []byte
		if err := json.Unmarshal(got.Body, &part); err != nil {
			return nil, fmt.Errorf("state of %s: %w", host, err)
		}
		if len(packed)+len(part) > maxHost {
			a.end()
			return nil, fmt.Errorf("the state of %s has more than %d MiB", host, maxHost>>20)
		}
		packed = append(packed, part...)
	}
}
