package serve

import (
	"container/list"
	"io"
	"net"
	"net/netip"
	"sync"
)

// Limit is a listener of which at most MaxConnections connections are open at once, and of one address at most MaxOfPeer that are idle.
// Where there are more, the one that has been idle for longest is closed, so that no client can keep others out; connections
// in use are left alone, and when all are, a new one waits in the kernel's queue. A connection is idle until its first byte comes; a
// [Server]'s is idle whenever no request is being answered on it, also where others read its beginning and gave it to the server: then its
// method NetConn gives the listener's connection, as that of tls.Conn does.
func Limit(l net.Listener) net.Listener { return newLimiter(l, MaxConnections, MaxOfPeer) }

// limiter keeps the connections of a listener.
type limiter struct {
	net.Listener
	most, mostOfPeer int

	mu     sync.Mutex
	free   sync.Cond // some connection has been closed, or the listener
	open   int
	closed bool
	idle   *list.List // of *limitedConn, the one that has been for longest first
	peers  map[netip.Addr]*peer
}

// peer is an address from which connections are open.
type peer struct {
	open int
	idle *list.List
}

func newLimiter(l net.Listener, most, mostOfPeer int) *limiter {
	lim := &limiter{Listener: l, most: most, mostOfPeer: mostOfPeer, idle: list.New(), peers: map[netip.Addr]*peer{}}
	lim.free.L = &lim.mu
	return lim
}

func (l *limiter) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.admit(c)
}

// admit counts a connection that has come, and closes one that is idle where there are too many.
func (l *limiter) admit(c net.Conn) (net.Conn, error) {
	if limitedOf(c) != nil { // of another limiter
		return c, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	from := peerOf(c)
	for {
		p := l.peers[from]
		var victim *list.Element
		switch {
		case l.closed:
			c.Close()
			return nil, net.ErrClosed
		case p != nil && p.idle.Len() >= l.mostOfPeer:
			victim = p.idle.Front()
		case l.open >= l.most:
			victim = l.idle.Front()
		default:
			return l.add(c, from), nil
		}
		if victim == nil {
			l.free.Wait()
			continue
		}
		l.remove(victim.Value.(*limitedConn)).Close()
	}
}

// peerOf is a connection's other end; the zero Addr for what has none, as a socket in the file system.
func peerOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (l *limiter) add(c net.Conn, from netip.Addr) net.Conn {
	p := l.peers[from]
	if p == nil {
		p = &peer{idle: list.New()}
		l.peers[from] = p
	}
	of := &limitedConn{Conn: c, limiter: l, from: from, counted: true}
	l.open, p.open = l.open+1, p.open+1
	l.rest(of)
	return of
}

// rest notes that a connection is idle from now on.
func (l *limiter) rest(c *limitedConn) {
	if c.counted && c.among == nil {
		c.among, c.amongPeer = l.idle.PushBack(c), l.peers[c.from].idle.PushBack(c)
	}
}

// wake notes that a connection is in use.
func (l *limiter) wake(c *limitedConn) {
	if c.among != nil {
		l.idle.Remove(c.among)
		l.peers[c.from].idle.Remove(c.amongPeer)
		c.among, c.amongPeer = nil, nil
	}
}

// remove forgets a connection, and returns the one to close.
func (l *limiter) remove(c *limitedConn) net.Conn {
	if c.counted {
		l.wake(c)
		c.counted = false
		l.open--
		if p := l.peers[c.from]; p.open > 1 {
			p.open--
		} else {
			delete(l.peers, c.from)
		}
		l.free.Broadcast()
	}
	return c.Conn
}

func (l *limiter) Close() error {
	l.mu.Lock()
	l.closed = true
	l.free.Broadcast()
	l.mu.Unlock()
	return l.Listener.Close()
}

// limitedConn is one of a limiter's connections, whose lock holds what changes.
type limitedConn struct {
	net.Conn
	limiter          *limiter
	from             netip.Addr
	counted          bool // it is open, and the limiter knows of it
	requests         int  // that are being answered
	among, amongPeer *list.Element
	read             bool // a byte has come; of the connection's reader alone
	ofServer         bool // requests decide whether it is in use, and not bytes
}

// limitedOf finds the limiter's connection below others; nil for one of no limiter.
func limitedOf(c net.Conn) *limitedConn {
	for {
		switch of := c.(type) {
		case *limitedConn:
			return of
		case interface{ NetConn() net.Conn }:
			c = of.NetConn()
		default:
			return nil
		}
	}
}

// giveToServer has requests decide from now on. What read the connection's beginning does not read it any more.
func (c *limitedConn) giveToServer() {
	c.ofServer = true
	if c.read {
		c.use(-1)
	}
}

func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 && !c.read && !c.ofServer {
		c.read = true
		c.use(1)
	}
	return n, err
}

// use counts requests that begin and, by a negative number, end. The request of a connection that a
// handler takes over (http.Hijacker) never ends.
func (c *limitedConn) use(n int) {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.requests += n; c.requests > 0 {
		c.limiter.wake(c)
	} else {
		c.limiter.rest(c)
	}
}

func (c *limitedConn) Close() error {
	c.limiter.mu.Lock()
	own := c.limiter.remove(c)
	c.limiter.mu.Unlock()
	return own.Close()
}

// CloseWrite tells the other side that nothing comes any more.
func (c *limitedConn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

// ReadFrom has the kernel copy where it can.
func (c *limitedConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }
