package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that is kept by a bind mount at a path, as iproute2 keeps those under /run/netns. It lives on when every
// process in it has ended, and when the process that made it is killed, until Remove. Its methods are safe for concurrent use.
type Namespace struct {
	path  string
	file  *os.File
	inode uint64

	mu     sync.Mutex
	handle *netlink.Handle
}

// home is the network namespace that the process was started in; every thread that was borrowed goes back to it. Go starts new
// threads from a thread that is not locked, so none is born in another namespace.
var home = sync.OnceValues(func() (*os.File, error) { return os.Open("/proc/self/ns/net") })

func init() { _, _ = home() } // before any thread moves; Do reports its error

// Create makes a new network namespace and mounts it at path, whose directory it makes when there is none (mode 0700).
// When it returns, the loopback link is up, and IPv4's interface settings are the kernel's defaults instead of the machine's values.
// A namespace that is already mounted there is an error that is fs.ErrExist; what a dead process left at the path without a mount is
// replaced. The parent mount need not be shared. The calling thread is not changed.
func Create(path string) (*Namespace, error) {
	if mounted(path) {
		return nil, fmt.Errorf("create namespace %s: %w", path, os.ErrExist)
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w (packetwalk needs root)", err)
		}
		return bindNamespace("/proc/thread-self/ns/net", path)
	})
	if err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", path, err)
	}
	ns, err := Open(path)
	if err != nil {
		return nil, err
	}
	if err = ns.ResetSettings(); err == nil {
		err = ns.loopbackUp()
	}
	if err != nil {
		return nil, errors.Join(err, ns.Remove())
	}
	return ns, nil
}

// InNewNamespace runs f with a new network namespace, which the calling thread is in, too. The namespace is removed when f returns.
func InNewNamespace(f func(*Namespace) error) error {
	return onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("create network namespace: %w", err)
		}
		ns, err := Open("/proc/thread-self/ns/net")
		if err != nil {
			return err
		}
		defer ns.Close()
		return f(ns)
	})
}

// bindNamespace mounts the namespace that a file of /proc leads to at path, and makes what is missing of that.
func bindNamespace(source, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o400)
	if err != nil {
		return err
	}
	file.Close()
	if err := unix.Mount(source, path, "", unix.MS_BIND, ""); err != nil {
		os.Remove(path)
		return fmt.Errorf("bind mount: %w", err)
	}
	return nil
}

// BindOf mounts the network namespace of a process at path, where no namespace is mounted.
func BindOf(pid int, path string) error {
	if err := bindNamespace(fmt.Sprintf("/proc/%d/ns/net", pid), path); err != nil {
		return fmt.Errorf("mount the namespace of process %d at %s: %w", pid, path, err)
	}
	return nil
}

// Mount mounts the network namespace that an open file is of at path, in the place of what was mounted there. A file that is none
// is an error.
func Mount(file *os.File, path string) error {
	kind, err := unix.IoctlRetInt(int(file.Fd()), unix.NS_GET_NSTYPE) // ioctl_nsfs(2)
	if err == nil && kind != unix.CLONE_NEWNET {
		err = errors.New("it is of another type")
	}
	if err != nil {
		return fmt.Errorf("%s is no network namespace: %w", file.Name(), err)
	}
	if err := Remove(path); err != nil {
		return err
	}
	if err := bindNamespace(fmt.Sprintf("/proc/self/fd/%d", file.Fd()), path); err != nil {
		return fmt.Errorf("mount namespace at %s: %w", path, err)
	}
	return nil
}

// Open opens the namespace that is mounted at path. A path where none is mounted is an error; when there is nothing
// at all it is fs.ErrNotExist.
func Open(path string) (*Namespace, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil || fs.Type != unix.NSFS_MAGIC {
		file.Close()
		return nil, fmt.Errorf("open namespace %s: no namespace is mounted there: %w", path, os.ErrNotExist)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		file.Close()
		return nil, fmt.Errorf("open namespace %s: %w", path, err)
	}
	return &Namespace{path: path, file: file, inode: st.Ino}, nil
}

// Ensure opens the namespace at path, or creates it where there is none; made says which.
func Ensure(path string) (ns *Namespace, made bool, err error) {
	if ns, err = Open(path); err == nil {
		return ns, false, nil
	}
	ns, err = Create(path)
	return ns, err == nil, err
}

// Remove takes away the namespace mounted at path, whoever made it. What is not there is no error.
func Remove(path string) error {
	for {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("remove namespace: unmount %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove namespace: %w", err)
	}
	return nil
}

// mounted reports whether a namespace is mounted at path.
func mounted(path string) bool {
	var fs unix.Statfs_t
	return unix.Statfs(path, &fs) == nil && fs.Type == unix.NSFS_MAGIC
}

// IsMounted reports whether the namespace is mounted at its path.
func (n *Namespace) IsMounted() bool {
	var st unix.Stat_t
	return mounted(n.path) && unix.Stat(n.path, &st) == nil && st.Ino == n.inode
}

// Remount mounts the namespace at its path again after its mount was lost. What is there instead goes.
func (n *Namespace) Remount() error {
	if err := Remove(n.path); err != nil {
		return err
	}
	if err := bindNamespace(fmt.Sprintf("/proc/self/fd/%d", n.FD()), n.path); err != nil {
		return fmt.Errorf("mount namespace %s again: %w", n.path, err)
	}
	return nil
}

// Path returns where the namespace is mounted.
func (n *Namespace) Path() string { return n.path }

// FD returns the namespace's file descriptor, for netlink sockets in it; it is good until Close.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// Inode returns the namespace's number, as /proc/PID/ns/net shows it.
func (n *Namespace) Inode() uint64 { return n.inode }

// Close gives back what this process holds of the namespace (a file, a netlink socket). The namespace stays.
func (n *Namespace) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handle != nil {
		n.handle.Close()
		n.handle = nil
	}
	return n.file.Close()
}

// Remove closes the namespace and takes its mount and file away. The kernel destroys it, and the links in it, when the last
// process in it ends. Removing twice, or what another process removed, is no error.
func (n *Namespace) Remove() error {
	_ = n.Close()
	return Remove(n.path)
}

// Do runs f on a thread that is in the namespace and waits for it. Sockets, netlink handles and child processes that f makes
// belong to the namespace for good and can be used from anywhere; goroutines that f starts do not run in it. f must not lock or
// unlock its thread. Afterwards the thread goes back to where it was; one that cannot is thrown away.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.path, err)
		}
		return f()
	})
}

// onThread runs f on a thread of its own, which may change its network namespace, and brings the thread home. It is never the process's
// first: whoever looks at /proc/self/ns/net, or from outside at /proc/PID/ns/net, sees that one's.
func onThread(f func() error) error {
	origin, err := home()
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onThread(f) // by another one: this is taken meanwhile
			return
		}
		err := errors.New("function ended its goroutine")
		defer func() {
			// A goroutine that ends with its thread locked takes the thread with it.
			if unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			done <- err
		}()
		err = f()
	}()
	return <-done
}

// Handle returns a netlink handle (routes, links, neighbours) inside the namespace, made at first use and closed by Close. The
// caller must not close it.
func (n *Namespace) Handle() (*netlink.Handle, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handle != nil {
		return n.handle, nil
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(n.file.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket in %s: %w", n.path, err)
	}
	n.handle = h
	return h, nil
}

// LoopbackUp sets the loopback link of the calling process's own namespace up. Containers may come up without.
func LoopbackUp() error {
	lo, err := netlink.LinkByIndex(1)
	if err == nil && lo.Attrs().Flags&net.FlagUp == 0 {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

func (n *Namespace) loopbackUp() error {
	h, err := n.Handle()
	if err != nil {
		return err
	}
	if err := h.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 1, Name: "lo"}}); err != nil {
		return fmt.Errorf("set lo up in %s: %w", n.path, err)
	}
	return nil
}

// Dial connects from inside the namespace. addr is a literal address and port: names are not looked up there.
func (n *Namespace) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return n.DialFrom(ctx, network, netip.Addr{}, addr)
}

// DialFrom connects from inside the namespace with local as the source address, or the kernel's choice when it is the zero Addr.
func (n *Namespace) DialFrom(ctx context.Context, network string, local netip.Addr, addr string) (net.Conn, error) {
	if _, err := netip.ParseAddrPort(addr); err != nil {
		return nil, fmt.Errorf("dial in %s: %w", n.path, err)
	}
	d := net.Dialer{LocalAddr: localAddr(network, local), FallbackDelay: -1}
	var conn net.Conn
	err := n.Do(func() (err error) {
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

func localAddr(network string, local netip.Addr) net.Addr {
	switch {
	case !local.IsValid():
		return nil
	case len(network) >= 3 && network[:3] == "udp":
		return &net.UDPAddr{IP: local.AsSlice()}
	default:
		return &net.TCPAddr{IP: local.AsSlice()}
	}
}

// Listen announces on a literal address and port inside the namespace.
func (n *Namespace) Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = (&net.ListenConfig{}).Listen(ctx, network, addr)
		return err
	})
	return l, err
}

// ListenPacket announces on a literal address and port inside the namespace.
func (n *Namespace) ListenPacket(ctx context.Context, network, addr string) (net.PacketConn, error) {
	var c net.PacketConn
	err := n.Do(func() (err error) {
		c, err = (&net.ListenConfig{}).ListenPacket(ctx, network, addr)
		return err
	})
	return c, err
}

// Start starts cmd as a child process in the namespace, as cmd.Start does, for what goes on without the caller; a program that ends is
// program.Command's. SysProcAttr.Pdeathsig must not be set: it follows the thread, not the process.
func (n *Namespace) Start(cmd *exec.Cmd) error {
	return n.Do(cmd.Start)
}
