package remote

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"packetwalk.dev/internal/answer/proof"
)

// patience bounds how long a sender waits for its answer, whoever asks.
const patience = 30 * time.Second

// closer closes what it is about, and then what that stood on.
type closer[T io.Closer] struct {
	it   T
	back func()
}

func (o *closer[T]) Close() error {
	defer o.back()
	return o.it.Close()
}

// openSender is a sender that is not closed while it sends: the number of its socket could be another one's by then.
type openSender struct {
	closer[proof.Sender]
	ended   context.Context
	end     context.CancelFunc
	sending sync.Mutex
}

func (o *openSender) Close() error {
	o.end()
	o.sending.Lock()
	defer o.sending.Unlock()
	return o.closer.Close()
}

func (s *server) prepare(ctx context.Context, p prepareRequest) (prepareReply, error) {
	place, back, err := s.place(p.Host)
	if err != nil {
		return prepareReply{}, err
	}
	sender, err := place.Prepare(ctx, p.Sending)
	if err != nil {
		back()
		return prepareReply{}, err
	}
	o := &openSender{closer: closer[proof.Sender]{sender, back}}
	o.ended, o.end = context.WithCancel(context.Background())
	return prepareReply{Handle: s.keep(o), Tuple: sender.Tuple()}, nil
}

// send sends the packet. That the question is ended is the end of patience, not of the conversation.
func (s *server) send(ctx context.Context, handle uint64) (result, error) {
	o, err := held[*openSender](s, handle)
	if err != nil {
		return result{}, err
	}
	o.sending.Lock()
	defer o.sending.Unlock()
	if o.ended.Err() != nil {
		return result{}, o.ended.Err()
	}
	waiting, enough := context.WithTimeout(ctx, patience)
	defer enough()
	defer context.AfterFunc(o.ended, enough)()
	r, err := o.it.Send(context.WithoutCancel(ctx), waiting)
	return result{Tuple: r.Tuple, Answer: r.Answer, ICMP: r.ICMP, Err: failed(r.Err)}, err
}

func (s *server) closeOne(handle uint64) error {
	s.mu.Lock()
	open, ok := s.opened[handle]
	delete(s.opened, handle)
	s.mu.Unlock()
	if !ok {
		return nil
	}
	return open.Close()
}

// Signals of what was seen are not sent more often than this.
const signalPause = 3 * time.Millisecond

// longest bounds how long the rules of a trace are there, whoever asks.
const longest = 2 * time.Minute

// watch sees what happens until the question is ended.
func (s *server) watch(ctx context.Context, id uint64, w watchRequest) error {
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	place, back, err := s.place(w.Host)
	if err != nil {
		return err
	}
	activity := make(chan struct{}, 1)
	watcher, err := place.Watch(ctx, w.What, activity)
	if err != nil {
		back()
		return err
	}
	handle := s.keep(&closer[proof.Watcher]{watcher, back})
	err = s.out.write(answer{ID: id, More: true, Body: encoded(watchReply{handle})})
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-activity:
			err = s.out.write(answer{ID: id, More: true})
			time.Sleep(signalPause)
		}
	}
	return errors.Join(err, s.closeOne(handle))
}

// unread bounds how long what was seen, but not read yet, is waited for.
const unread = 250 * time.Millisecond

func (s *server) now(ctx context.Context, a stateRequest) (state, error) {
	watcher, err := held[*closer[proof.Watcher]](s, a.Handle)
	if err != nil {
		return state{}, err
	}
	for begin := time.Now(); watcher.it.Pending() && time.Since(begin) < unread; {
		time.Sleep(signalPause)
	}
	host, err := watcher.it.Now(ctx)
	if err != nil {
		return state{}, err
	}
	st := state{Flows: host.Flows, Trace: host.Trace[min(max(a.Trace, 0), len(host.Trace)):],
		Packets: host.Packets[min(max(a.Packets, 0), len(host.Packets)):]}
	for id, handles := range host.Handles {
		st.Handles = append(st.Handles, chainHandles{id, handles})
	}
	for id, absent := range host.Absent {
		st.Absent = append(st.Absent, chainAbsent{id, absent})
	}
	return st, nil
}

func (s *server) ruleText(ctx context.Context, r rule) (string, error) {
	place, back, err := s.place(r.Host)
	if err != nil {
		return "", err
	}
	defer back()
	return place.RuleText(ctx, r.Rule)
}
