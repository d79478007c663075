package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/rootfs"
)

// streams are a container's standard streams: its ends, and ours.
type streams struct {
	child  [3]*os.File
	in     *os.File // nil without a standard input
	out    [2]*os.File
	held   [2]*os.File // writers of ours to out, so that it does not end before the container does
	tty    bool
	inOnce sync.Once
	copies sync.WaitGroup
}

// open makes a command's streams. A terminal's are the null device until the first process has it.
func (s *streams) open(spec *container.Spec) (err error) {
	if s.tty = spec.TTY; s.tty {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		s.child = [3]*os.File{null, null, null}
		return err
	}
	if spec.Stdin {
		s.child[0], s.in, err = os.Pipe()
	} else {
		s.child[0], err = os.Open(os.DevNull)
	}
	for i := range s.out {
		if err == nil {
			s.out[i], s.child[i+1], err = os.Pipe()
		}
	}
	if err != nil {
		return fmt.Errorf("make standard streams: %w", err)
	}
	return nil
}

// master takes a terminal's master.
func (s *streams) master(terminal *os.File, input bool) {
	s.out[0] = terminal
	if input {
		s.in = terminal
	}
}

// firstFds is where a process of the container looks for the first one's standard streams, to write to the container's log. Of an
// application that is the first process what is there is ours, made for that: the kernel's own would lead to all that it has open, and is
// not to be had without the right to trace it.
const firstFds = "/proc/1/fd"

// openFirst makes standard output and error as named pipes in firstFds. Every user of the container can write to them.
func (s *streams) openFirst() error {
	err := unix.Mount("tmpfs", firstFds, "tmpfs", rootfs.NoExec, "mode=0555,size=4k")
	for i := range s.out {
		if err == nil {
			err = s.openOne(i, fmt.Sprintf("%s/%d", firstFds, i+1))
		}
	}
	if err == nil {
		err = rootfs.ReadOnly(firstFds)
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", firstFds, err)
	}
	return nil
}

func (s *streams) openOne(i int, name string) error {
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return err
	}
	if err := unix.Chmod(name, 0o622); err != nil { // past the umask
		return err
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0) // not to wait for a writer
	if err != nil {
		return err
	}
	s.out[i] = os.NewFile(uintptr(fd), name)
	s.held[i], err = os.OpenFile(name, os.O_WRONLY, 0)
	return err
}

func (s *streams) closeChild() {
	for _, f := range s.child {
		f.Close() // three of one file: the later ones fail without harm
	}
}

// begin copies the command's output to the log and to who is attached.
func (s *streams) begin(b *boot) {
	names := [2]string{"stdout", "stderr"}
	for i, from := range s.out {
		if from == nil {
			continue
		}
		log := b.log.stream(names[i])
		s.copies.Go(func() {
			defer log.Close()
			s.copy(log, b.attach, byte(container.FrameStdout+i), from)
		})
	}
	if b.attach != nil {
		go b.attach.serve(s, b.spec.StdinOnce)
	}
}

func (s *streams) copy(log io.Writer, attach *attachServer, kind byte, from *os.File) {
	buf := make([]byte, 8<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			_, _ = log.Write(buf[:n])
			if attach != nil {
				attach.broadcast(kind, buf[:n])
			}
		}
		if err != nil {
			return // end of file, or EIO of a terminal that nobody has open
		}
	}
}

// finish waits until all output is read. What holds a stream open was killed; should it take its time to die, we do not wait for ever.
func (s *streams) finish() {
	for _, f := range s.held {
		if f != nil {
			f.Close()
		}
	}
	done := make(chan struct{})
	go func() { s.copies.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
}

func (s *streams) write(p []byte) {
	if s.in != nil {
		_, _ = s.in.Write(p) // a command that does not read is not to be helped
	}
}

// endInput is the end of the standard input. A terminal has none: kubectl's end of file on one is the character that it sends.
func (s *streams) endInput() {
	if s.in != nil && !s.tty {
		s.inOnce.Do(func() { s.in.Close() })
	}
}

// An attachServer lets callers of container.Attach in.
type attachServer struct {
	ln    net.Listener
	mu    sync.Mutex
	conns map[net.Conn]bool
}

func listenAttach(dir *os.Root) (*attachServer, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	// By descriptor: a socket's path is short (unix(7)).
	name := fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), container.AttachFile)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for attach: %w", err)
	}
	ln.SetUnlinkOnClose(false) // that path leads elsewhere by then
	return &attachServer{ln: ln, conns: map[net.Conn]bool{}}, nil
}

func (a *attachServer) serve(s *streams, once bool) {
	for {
		conn, err := a.ln.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				fmt.Fprintln(os.Stderr, err)
			}
			return
		}
		a.mu.Lock()
		a.conns[conn] = true
		a.mu.Unlock()
		go a.receive(conn, s, once)
	}
}

func (a *attachServer) receive(conn net.Conn, s *streams, once bool) {
	defer a.drop(conn)
	wrote := false
	for {
		kind, payload, err := container.ReadFrame(conn)
		if err != nil {
			if wrote && once {
				s.endInput()
			}
			return
		}
		switch kind {
		case container.FrameStdin:
			wrote = true
			s.write(payload)
		case container.FrameEOF:
			if once {
				s.endInput()
			}
		case container.FrameResize:
			if len(payload) == 4 && s.tty {
				size := container.Size{Width: binary.BigEndian.Uint16(payload), Height: binary.BigEndian.Uint16(payload[2:])}
				_ = container.Resize(s.out[0], size)
			}
		}
	}
}

func (a *attachServer) drop(conn net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.conns, conn)
	conn.Close()
}

// attachPatience is how long a caller may keep the command's output waiting before it is let go.
const attachPatience = 5 * time.Second

func (a *attachServer) broadcast(kind byte, p []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for conn := range a.conns {
		_ = conn.SetWriteDeadline(time.Now().Add(attachPatience))
		if container.WriteFrame(conn, kind, p) != nil {
			delete(a.conns, conn)
			conn.Close()
		}
	}
}

// close lets everybody go; they see the end of the container.
func (a *attachServer) close() {
	a.ln.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	for conn := range a.conns {
		conn.Close()
	}
}
