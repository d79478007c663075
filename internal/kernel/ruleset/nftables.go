package ruleset

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/syntax/nfnetlink"
)

// NFTables is nf_tables of a network namespace, by netlink. It keeps its socket open until Close: a socket that closes waits until the
// kernel has destroyed what transactions deleted, which takes some RCU grace periods (nft_rcv_nl_event), 10 to 25 ms. It is not safe for
// concurrent use, but for Port.
type NFTables struct {
	NetNS int // descriptor of the namespace, read when a socket is opened; 0: that of the thread that calls
	conn  *netlink.Conn
	port  atomic.Uint32
}

// Port returns the number of the socket that was opened last, by which the kernel's notices name who made a transaction; 0 before the
// first.
func (n *NFTables) Port() int { return int(n.port.Load()) }

// nftTimeout is how long the kernel may take for a transaction or an answer, if the context gives no less.
const nftTimeout = time.Minute

// dumpTries is how often a dump is begun that the kernel says others changed meanwhile.
const dumpTries = 10

var errDumpChanged = errors.New("rules changed while they were read, each time")

// Commit makes a transaction: all messages or none. The error is that of the first message that the kernel refused, or ERESTART if the
// namespace's rules are of another generation than this; 0 is any.
func (n *NFTables) Commit(ctx context.Context, messages []netlink.Message, generation uint32) error {
	return n.do(ctx, func(c *netlink.Conn) error { return SendBatch(c, nfnetlink.Batch(messages, generation)) })
}

// Ask sends a request and gives the answers. The error is ENOENT for what is not there.
func (n *NFTables) Ask(ctx context.Context, request netlink.Message) (answers []netlink.Message, err error) {
	var missing error // an answer like others, with nothing to follow
	err = n.do(ctx, func(c *netlink.Conn) error {
		for range dumpTries {
			answers, err = c.Execute(request)
			if errors.Is(err, unix.ENOENT) {
				missing = err
				return nil
			}
			if err != nil || !changedMeanwhile(answers) {
				return err
			}
		}
		return errDumpChanged
	})
	if err == nil {
		err = missing
	}
	return answers, err
}

func changedMeanwhile(answers []netlink.Message) bool {
	for i := range answers {
		if answers[i].Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
}

// Close closes the socket; the next call opens another.
func (n *NFTables) Close() {
	if n.conn != nil {
		_ = n.conn.Close()
	}
	n.conn = nil
}

// do uses the socket, and closes it when something fails: what the kernel has still to say of that is no answer to what comes next.
func (n *NFTables) do(ctx context.Context, f func(*netlink.Conn) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if n.conn == nil {
		if n.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.NetNS}); err != nil {
			return fmt.Errorf("open nf_tables: %w", err)
		}
		n.port.Store(n.conn.PID())
	}
	c := n.conn
	deadline := time.Now().Add(nftTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	if err := c.SetReadDeadline(deadline); err != nil {
		return fmt.Errorf("open nf_tables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	err = f(c)
	if !stop() && err == nil {
		n.Close() // its deadline may be over any time
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// SendBatch sends a batch and waits for the answer to its last message, or the first error.
func SendBatch(c *netlink.Conn, batch []netlink.Message) error {
	size := 0
	for _, m := range batch {
		size += len(m.Data) + 16
	}
	if err := c.SetWriteBuffer(max(size*2, 1<<16)); err != nil {
		return err
	}
	if _, err := c.SendMessages(batch); err != nil {
		return err
	}
	_, err := c.Receive()
	return err
}
