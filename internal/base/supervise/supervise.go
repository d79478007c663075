package supervise

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"time"

	"packetwalk.dev/internal/base/pause"
)

// Process is what to keep running.
type Process struct {
	Name    string   // for people: in states and errors
	Path    string   // the program
	Args    []string // its arguments, without the program's name
	Env     []string // KEY=value; nil: the caller's environment
	Dir     string   // working directory; empty: the caller's
	LogFile string   // standard output and error are appended here, and bounded ([MaxLog]); empty: thrown away
	PidFile string   // makes the process adoptable by a later supervisor; empty: not adoptable
}

// Start starts the command (exec.Cmd.Start) where it belongs, for instance on a thread inside a network namespace.
// It must not wait for it, and must not set Pdeathsig: the process outlives its supervisor.
type Start func(command *exec.Cmd) error

// Options are the supervisor's times. The zero value of each means its default.
type Options struct {
	MinPause time.Duration // before the first restart; default 1 s
	MaxPause time.Duration // the pause doubles up to this; default 30 s
	Steady   time.Duration // a process that ran this long restarts after MinPause again; default 60 s
	Grace    time.Duration // between SIGTERM and SIGKILL; default 2 s
	// OnChange, when set, is called with each new state, one call at a time.
	OnChange func(State)
}

func (o Options) withDefaults() Options {
	defaults := []struct {
		value *time.Duration
		or    time.Duration
	}{{&o.MinPause, time.Second}, {&o.MaxPause, 30 * time.Second}, {&o.Steady, time.Minute}, {&o.Grace, 2 * time.Second}}
	for _, d := range defaults {
		if *d.value == 0 {
			*d.value = d.or
		}
	}
	return o
}

// State is what status shows of a process.
type State struct {
	Name     string    `json:"name"`
	Pid      int       `json:"pid"`                // 0: does not run
	Since    time.Time `json:"since,omitzero"`     // start of the process, or of its absence
	Restarts int       `json:"restarts"`           // how often this supervisor started it again
	LastExit string    `json:"lastExit,omitempty"` // how it ended last, or why it did not start
	// ends in a row, each sooner than Options.Steady after the start; 0 again once it ran that long
	Failures int  `json:"failures,omitempty"`
	Adopted  bool `json:"-"` // started by an earlier supervisor
}

// Supervisor keeps one process running. Its methods may be called at once from several goroutines.
type Supervisor struct {
	process Process
	start   Start
	options Options

	mu      sync.Mutex
	state   State
	current *handle
	leave   context.CancelFunc
	ended   chan struct{}  // closes when the loop has ended
	bound   sync.WaitGroup // of the log
}

// Run adopts or starts the process and keeps it running until Stop or Detach. It returns when the process runs or could not be started;
// one that could not be started is not tried again.
func Run(process Process, start Start, options Options) (*Supervisor, error) {
	s := &Supervisor{process: process, start: start, options: options.withDefaults(), ended: make(chan struct{})}
	s.state = State{Name: process.Name, Since: time.Now()}
	h, err := adopt(process)
	if err != nil {
		return nil, err
	}
	adopted := h != nil
	if !adopted {
		if h, err = spawn(process, start); err != nil {
			return nil, err
		}
	}
	ctx, leave := context.WithCancel(context.Background())
	s.leave = leave
	s.running(h, adopted)
	if process.LogFile != "" {
		s.bound.Go(func() { BoundLog(ctx, process.LogFile) })
	}
	go s.loop(ctx, h)
	return s, nil
}

// loop waits for the process's end and starts it again, until ctx ends.
func (s *Supervisor) loop(ctx context.Context, h *handle) {
	defer close(s.ended)
	wait := s.options.MinPause
	for {
		if h != nil {
			select {
			case <-ctx.Done():
				return // the process runs on: Stop takes it from here, or a later supervisor
			case <-h.done:
			}
			if time.Since(h.since) >= s.options.Steady {
				wait = s.options.MinPause
				s.change(func(state *State) { state.Failures = 0 })
			}
			s.recordExit(h.exit)
			h.close()
		}
		if !pause.For(ctx, wait) {
			return
		}
		wait = min(2*wait, s.options.MaxPause)
		h = s.restart()
	}
}

// restart starts the process again; nil when it could not.
func (s *Supervisor) restart() *handle {
	h, err := spawn(s.process, s.start)
	if err != nil {
		s.recordExit(err.Error())
		return nil
	}
	s.change(func(state *State) { state.Restarts++ })
	s.running(h, false)
	return h
}

func (s *Supervisor) running(h *handle, adopted bool) {
	s.mu.Lock()
	s.current = h
	s.mu.Unlock()
	s.change(func(state *State) { state.Pid, state.Since, state.Adopted = h.pid, h.since, adopted })
	s.notify()
}

func (s *Supervisor) recordExit(exit string) {
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	s.change(func(state *State) {
		if state.Pid != 0 {
			state.Since = time.Now()
		}
		state.Failures++
		state.Pid, state.LastExit, state.Adopted = 0, exit, false
	})
	s.notify()
}

func (s *Supervisor) change(edit func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	edit(&s.state)
}

// notify tells the new state. Only the loop, and Run and Stop when there is none, come here, so calls do not overlap.
func (s *Supervisor) notify() {
	if s.options.OnChange != nil {
		s.options.OnChange(s.State())
	}
}

// State returns the process's present state.
func (s *Supervisor) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state
	if state.Pid != 0 && time.Since(state.Since) >= s.options.Steady {
		state.Failures = 0
	}
	return state
}

// Detach ends the supervision and leaves the process running, for a later supervisor to adopt.
func (s *Supervisor) Detach() {
	s.leave()
	<-s.ended
	s.bound.Wait()
}

// Stop ends the supervision and the process: SIGTERM, then SIGKILL after Options.Grace. Only the process itself gets signals, not what it
// started. A second Stop does nothing.
func (s *Supervisor) Stop() error {
	s.Detach()
	s.mu.Lock()
	h := s.current
	s.current = nil
	s.mu.Unlock()
	if h != nil {
		if err := h.stop(s.options.Grace); err != nil {
			return err
		}
		h.close()
		s.recordExit(h.exit)
	}
	if s.process.PidFile == "" {
		return nil
	}
	if err := os.Remove(s.process.PidFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Recorded gives the pid of the process that a pid file names when it still runs, else 0: for a look at what a supervisor left
// behind.
func Recorded(pidFile string) int {
	pid, started, err := readPid(pidFile)
	if err != nil {
		return 0
	}
	if alive, err := runs(pid, started); err != nil || !alive {
		return 0
	}
	return pid
}
