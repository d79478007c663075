package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/witness"
)

// Machine is what a conversation is about: the hosts of one machine.
type Machine interface {
	// Look finds the hosts there are now: an origin of their states, and the path of the network namespace of each.
	Look(ctx context.Context) (capture.Origin, map[string]string, error)
	// Open opens the place of a host, by the path of its namespace and the namespace's inode. The function gives it back.
	Open(path string, inode uint64) (proof.Place, func(), error)
	// LookUp asks the resolver of a host for a name, as the host's processes do.
	LookUp(ctx context.Context, path string, inode uint64, name string) (witness.Lookup, error)
}

// Serve answers on one stream until it ends or breaks off, its reader stops, or ctx ends, and then closes all that was
// opened for it. A stream that ends between two questions is no error. version is this program's. It may leave a read of in behind, and a
// write to out: what they are of is to be closed then.
func Serve(ctx context.Context, in io.Reader, out io.Writer, m Machine, version string) error {
	ctx, stop := context.WithCancelCause(ctx)
	s := &server{ctx: ctx, machine: m, stop: stop, running: map[uint64]context.CancelFunc{}, opened: map[uint64]io.Closer{},
		fetching: make(chan struct{}, maxFetching)}
	s.out = &frameWriter{w: out, stuck: func() { stop(errors.New("the reader stopped")) }}
	defer s.close()
	go func() { stop(s.read(in, version)) }()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// read takes questions until the stream ends: io.EOF.
func (s *server) read(in io.Reader, version string) error {
	var hello question
	if err := readFrame(in, &hello); err != nil {
		return fmt.Errorf("no greeting: %w", noEOF(err))
	}
	if hello.Op != opHello {
		return errors.New("no greeting")
	}
	if err := s.out.write(answer{ID: hello.ID, Body: encoded(greeting{Protocol: protocol, Version: version})}); err != nil {
		return err
	}
	unasked := time.AfterFunc(silence, func() { s.stop(errors.New("no request within the idle time limit")) })
	defer unasked.Stop()
	for {
		var q question
		if err := readFrame(in, &q); err != nil {
			return err
		}
		unasked.Reset(silence)
		if !s.handle(q) {
			if err := s.out.write(answer{ID: q.ID, Err: &failure{Text: "too many questions at the same time"}}); err != nil {
				return err
			}
		}
	}
}

// silence is for how long a conversation stays open in which nothing is asked: where the network is cut, its stream does not end.
const silence = 2 * time.Minute

// noEOF makes the end of a stream one that is an error.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// maxFetching is how many hosts' states are read at the same time.
const maxFetching = 4

// maxQuestions is how many questions of one conversation are answered at the same time.
const maxQuestions = 256

// server is the node's side of a conversation.
type server struct {
	ctx     context.Context // of the conversation
	machine Machine
	out     *frameWriter
	stop    context.CancelCauseFunc
	work    sync.WaitGroup

	mu      sync.Mutex
	running map[uint64]context.CancelFunc // by question
	opened  map[uint64]io.Closer          // senders and watchers, by handle
	handles uint64
	closed  bool

	fetching chan struct{} // a place for each state that is read: some have tens of megabytes
	looking  sync.Mutex
	looked   time.Time
	origin   capture.Origin
	paths    map[string]string
}

// closing bounds the wait for what still runs when a conversation ends. What is open is closed in any case.
const closing = 5 * time.Second

// close ends what runs and closes what is open.
func (s *server) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		s.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closing): // a write that the other side does not read
	}
	s.mu.Lock()
	open := slices.Collect(maps.Values(s.opened))
	clear(s.opened)
	s.mu.Unlock()
	for _, o := range open {
		_ = o.Close()
	}
}

// handle starts to answer a question, or cancels one. It returns false if too many are open.
func (s *server) handle(q question) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.End {
		if end := s.running[q.ID]; end != nil {
			end()
		}
		return true
	}
	if s.running[q.ID] != nil || len(s.running) >= maxQuestions {
		return false
	}
	if s.closed {
		return true // no client is left to answer
	}
	ctx, end := context.WithCancel(s.ctx)
	s.running[q.ID] = end
	s.work.Go(func() {
		defer end()
		body, err := s.answer(ctx, q)
		s.mu.Lock()
		delete(s.running, q.ID)
		s.mu.Unlock()
		err = s.out.write(answer{ID: q.ID, Body: body, Err: failed(err)})
		if errors.Is(err, errTooLong) {
			err = s.out.write(answer{ID: q.ID, Err: failed(err)})
		}
		if err != nil {
			s.stop(err) // the other side no longer reads
		}
	})
	return true
}

// answer gives the last answer to a question; those before it are written by it.
func (s *server) answer(ctx context.Context, q question) (json.RawMessage, error) {
	switch q.Op {
	case opPing:
		return nil, nil
	case opHosts:
		return reply(s.hosts())
	case opTools:
		return reply(s.tools())
	case opFetch:
		return with(q, func(host string) (any, error) { return nil, s.fetch(ctx, q.ID, host) })
	case opPrepare:
		return with(q, func(p prepareRequest) (any, error) { return s.prepare(ctx, p) })
	case opSend:
		return with(q, func(handle uint64) (any, error) { return s.send(ctx, handle) })
	case opWatch:
		return with(q, func(w watchRequest) (any, error) { return nil, s.watch(ctx, q.ID, w) })
	case opNow:
		return with(q, func(a stateRequest) (any, error) { return s.now(ctx, a) })
	case opClose:
		return with(q, func(handle uint64) (any, error) { return nil, s.closeOne(handle) })
	case opLookUp:
		return with(q, func(r lookUpRequest) (any, error) { return s.lookUp(ctx, r) })
	case opRuleText:
		return with(q, func(r rule) (any, error) { return s.ruleText(ctx, r) })
	}
	return nil, fmt.Errorf("question %q is not known", q.Op)
}

// with reads a question's body and answers by it.
func with[T any](q question, do func(T) (any, error)) (json.RawMessage, error) {
	var body T
	if err := json.Unmarshal(q.Body, &body); err != nil {
		return nil, fmt.Errorf("question %s: %w", q.Op, err)
	}
	return reply(do(body))
}

func reply[T any](value T, err error) (json.RawMessage, error) {
	if err != nil {
		return nil, err
	}
	return encoded(value), nil
}

// encoded returns a value of a type that can be encoded.
func encoded(value any) json.RawMessage {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // of a type of ours
	}
	return data
}

// lookAge is for how long one look at the machine's processes serves: for the questions of one walk or capture.
const lookAge = time.Second

// findHosts finds the machine's hosts.
func (s *server) findHosts() (capture.Origin, map[string]string, error) {
	s.looking.Lock()
	defer s.looking.Unlock()
	if time.Since(s.looked) < lookAge {
		return s.origin, s.paths, nil
	}
	origin, paths, err := s.machine.Look(s.ctx)
	if err != nil {
		return origin, nil, err
	}
	s.origin, s.paths, s.looked = origin, paths, time.Now()
	return origin, paths, nil
}

func (s *server) hosts() (map[string]uint64, error) {
	origin, _, err := s.findHosts()
	inodes := map[string]uint64{}
	for name, ns := range origin.Hosts {
		inodes[name] = ns.Inode
	}
	return inodes, err
}

func (s *server) tools() (map[string]string, error) {
	origin, _, err := s.findHosts()
	if err != nil {
		return nil, err
	}
	return origin.Tools(), nil
}

// fetch writes a host's state, as a capture of that host alone, in pieces.
func (s *server) fetch(ctx context.Context, id uint64, host string) error {
	select {
	case s.fetching <- struct{}{}:
		defer func() { <-s.fetching }()
	case <-ctx.Done():
		return ctx.Err()
	}
	origin, _, err := s.findHosts()
	if err != nil {
		return err
	}
	raw, err := origin.Fetch(host)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	w, err := capture.NewWriter(&packed, capture.Head{Taken: raw.Taken})
	if err != nil {
		return err
	}
	if err := errors.Join(w.Add(raw), w.Close(nil, nil)); err != nil {
		return err
	}
	for packed.Len() > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.out.write(answer{ID: id, More: true, Body: encoded(packed.Next(piece))}); err != nil {
			return err
		}
	}
	return nil
}

// find returns the path and the inode of a host's namespace.
func (s *server) find(host string) (path string, inode uint64, err error) {
	origin, paths, err := s.findHosts()
	if err != nil {
		return "", 0, err
	}
	path, ok := paths[host]
	if !ok {
		return "", 0, fmt.Errorf("host %q: %w", host, fs.ErrNotExist)
	}
	return path, origin.Hosts[host].Inode, nil
}

func (s *server) lookUp(ctx context.Context, r lookUpRequest) (found witness.Lookup, err error) {
	path, inode, err := s.find(r.Host)
	if err != nil {
		return found, err
	}
	return s.machine.LookUp(ctx, path, inode, r.Name)
}

// place returns the place of a host, and what gives it back.
func (s *server) place(host string) (proof.Place, func(), error) {
	path, inode, err := s.find(host)
	if err != nil {
		return nil, nil, err
	}
	at, closeIt, err := s.machine.Open(path, inode)
	if err != nil {
		return nil, nil, fmt.Errorf("host %q: %w", host, err)
	}
	return at, closeIt, nil
}

// keep gives a handle to what the conversation has opened.
func (s *server) keep(open io.Closer) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handles++; s.closed {
		go func() { _ = open.Close() }()
		return s.handles
	}
	s.opened[s.handles] = open
	return s.handles
}

// held returns what has a handle; T says what it should be.
func held[T any](s *server, handle uint64) (T, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	open, ok := s.opened[handle].(T)
	if !ok {
		return open, fmt.Errorf("nothing such is open as %d", handle)
	}
	return open, nil
}
