package controlplane

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"packetwalk.dev/internal/testing/kerneltest"
)

// namespace is a network namespace that lives on one locked thread: what runs through do is inside it.
type namespace struct{ work chan func() }

// newNamespace makes a network namespace with the loopback device up and address on it; the test's end removes it.
func newNamespace(t *testing.T, address netip.Addr) *namespace {
	t.Helper()
	kerneltest.NeedRoot(t)
	n := &namespace{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, and with it the namespace, ends with the goroutine
		ready <- enterNewNamespace(address)
		for job := range n.work {
			job()
		}
	}()
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(n.work) })
	return n
}

func enterNewNamespace(address netip.Addr) error {
	handle, err := netns.New()
	if err != nil {
		return err
	}
	defer handle.Close()
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return err
	}
	bits := address.BitLen()
	return netlink.AddrAdd(loopback, &netlink.Addr{IPNet: &net.IPNet{IP: address.AsSlice(), Mask: net.CIDRMask(bits, bits)}})
}

// do runs job inside the namespace.
func (n *namespace) do(job func() error) error {
	result := make(chan error)
	n.work <- func() { result <- job() }
	return <-result
}

func (n *namespace) start(command *exec.Cmd) error { return n.do(command.Start) }

// dial opens a connection from inside the namespace. The socket belongs to the namespace of the thread that makes it, so it must be an
// address, not a name.
func (n *namespace) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	return conn, n.do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
}
