package container

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// A Runtime starts containers.
type Runtime struct {
	// Binary is the path of packetwalk-app, a container's first process.
	Binary string
}

// A Container is a container that runs or ran. Its methods are safe for concurrent use.
type Container struct {
	spec    Spec
	pid     int
	started time.Time
	done    chan struct{}
	mu      sync.Mutex
	exit    Exit
}

var errTODO = errors.New("not built yet")

// Start starts a container and returns when its process runs: a built-in application listens, or failed to and has ended; a command has been
// executed. Cancelling ctx before that ends the attempt; later it does nothing. An attempt that fails leaves no process and no mount.
func (r *Runtime) Start(ctx context.Context, s Spec) (*Container, error) { return nil, errTODO }

// Adopt finds the container that a Start with this Spec.Dir began, by this process or one that has ended since. If it has ended meanwhile,
// Done is closed and Exit says how. It is safe to adopt a directory of an attempt that failed: the error is then ErrNoContainer.
func (r *Runtime) Adopt(dir string) (*Container, error) { return nil, errTODO }

// Spec returns what the container was started from.
func (c *Container) Spec() Spec { return c.spec }

// Pid is the first process in the caller's pid namespace, also after it ended.
func (c *Container) Pid() int { return c.pid }

// StartedAt is the time when the container's process began to run.
func (c *Container) StartedAt() time.Time { return c.started }

// Done is closed when the container has ended and Exit is known.
func (c *Container) Done() <-chan struct{} { return c.done }

// Exit is how the container ended; the zero Exit before Done is closed.
func (c *Container) Exit() Exit {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exit
}

// Stop sends SIGTERM, and SIGKILL when the container still runs after grace (at once if grace is 0 or less) or when ctx ends. It returns when the
// container has ended; stopping one that has ended is no error.
func (c *Container) Stop(ctx context.Context, grace time.Duration) error { return errTODO }

// Kill sends SIGKILL to everything in the container and waits for its end.
func (c *Container) Kill() error { return errTODO }

// Remove ends the container if it runs and deletes Spec.Dir. The log stays.
func (c *Container) Remove() error { return errTODO }

// A Size is a terminal's, in characters.
type Size struct{ Width, Height uint16 }

// An Exec is a command in a container that runs.
type Exec struct {
	Args []string
	Env  []string // over the container's
	// Dir is the working directory; "" is the container's.
	Dir string
	// TTY runs the command on a terminal of its own, whose output goes to Stdout.
	TTY            bool
	Stdin          io.Reader // nil is end of file
	Stdout, Stderr io.Writer // nil discards
	Resize         <-chan Size
}

// Exec runs a command in all of the container's namespaces, with its environment, user and capabilities, and returns its exit status when it
// has ended (128+n after signal n). Without a terminal output that arrives later, from a process that it left behind, is not waited for.
// A command that cannot be executed gives 127 (not found) or 126 and an error with ErrStart in its chain. When ctx ends, the command is killed.
// Exec does not wait for a Read of Stdin that blocks.
func (c *Container) Exec(ctx context.Context, e Exec) (code int, err error) { return -1, errTODO }

// Streams are the caller's ends of a container's standard streams.
type Streams struct {
	TTY            bool // must be the Spec's
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
}

// Attach connects the streams to the container's command until it ends, or ctx does. Output from before is in the log. Only a container with
// Stdin or TTY can be attached to.
func (c *Container) Attach(ctx context.Context, s Streams) error { return errTODO }

// LogOptions select lines of a log.
type LogOptions struct {
	Follow     bool
	Tail       int // the last lines; negative for all of them
	Since      time.Time
	Timestamps bool  // put each line's time, RFC 3339 with nanoseconds, and a space before it
	LimitBytes int64 // 0 is no limit
	// Ended, with Follow, ends the reading when what was written before it was closed has been read: a Container's Done. nil never does.
	Ended <-chan struct{}
	// Stream takes only "stdout" or "stderr"; "" both.
	Stream string
}

// ReadLogs copies the log that a container wrote at path, the file that it was rotated to first, to w: for each line what the container
// wrote, without CRI's prefix. It returns when all is read, or, with Follow, when o.Ended or ctx end. A file that is not there yet is
// waited for with Follow and an error that is fs.ErrNotExist without.
func ReadLogs(ctx context.Context, path string, o LogOptions, w io.Writer) error { return errTODO }

// A Run is a command in the network namespace of a host that is not a container: a node, a VM, the fabric. The file system is the machine's
// own, read-write; mount and UTS namespaces are new, with a /sys that shows the network namespace's links.
type Run struct {
	NetNS    string // path
	Hostname string // "" keeps the machine's
	Args     []string
	Env      []string // nil is the caller's
	Dir      string   // "" is the caller's
	Mounts   []Mount  // over the machine's files, as seen by this command only; a Destination that is a symbolic link is followed
}

// RunIn runs the command and returns its exit status. Empty Args run the user's shell ($SHELL, else bash, else sh). Files among the streams
// are handed through, so that a terminal stays one; nil streams are /dev/null.
func (r *Runtime) RunIn(ctx context.Context, run Run, stdin io.Reader, stdout, stderr io.Writer) (code int, err error) {
	return -1, errTODO
}

// RunArgv gives the command line that RunIn executes, for a caller that wants to become it by execve.
func (r *Runtime) RunArgv(run Run) (argv, env []string, err error) { return nil, nil, errTODO }
