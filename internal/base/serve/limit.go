package serve

import (
	"container/list"
	"io"
	"net"
	"net/netip"
	"sync"
)

// Limit returns a listener of which at most MaxConnections connections are open at once, and of one address at most MaxOfPeer that are
// idle. A connection is idle until its first byte comes; a [Server]'s is idle whenever no request is being answered on it.
//
// Where there are more, one is closed, so that no client can keep others out: of the address that has most connections, the one that has
// been silent for longest. Requests that are being answered are left alone. Where all connections have one, a new connection waits in the
// kernel's queue.
//
// Others may read a connection's beginning and give it to a server: then its method NetConn gives the listener's connection, as that of
// tls.Conn does.
func Limit(l net.Listener) net.Listener { return newLimiter(l, MaxConnections, MaxOfPeer) }

// limiter keeps the connections of a listener.
type limiter struct {
	net.Listener
	most, mostOfPeer int

	mu     sync.Mutex
	free   sync.Cond // some connection has been closed, or the listener
	open   int
	closed bool
	peers  map[netip.Addr]*peer
}

// peer is an address from which connections are open.
type peer struct {
	open   int
	idle   int        // of silent, those that are idle
	silent *list.List // of *limitedConn without a request, the one that has been silent for longest first
}

// oldest returns the oldest connection, of the idle ones or of all, or nil if there is none.
func (p *peer) oldest(idle bool) *limitedConn {
	for e := p.silent.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*limitedConn); c.idle || !idle {
			return c
		}
	}
	return nil
}

func newLimiter(l net.Listener, most, mostOfPeer int) *limiter {
	lim := &limiter{Listener: l, most: most, mostOfPeer: mostOfPeer, peers: map[netip.Addr]*peer{}}
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
		var victim *limitedConn
		switch {
		case l.closed:
			c.Close()
			return nil, net.ErrClosed
		case p != nil && p.idle >= l.mostOfPeer:
			victim = p.oldest(true)
		case l.open >= l.most:
			victim = l.crowd().oldest(false)
		default:
			return l.add(c, from), nil
		}
		if victim == nil {
			l.free.Wait()
			continue
		}
		l.remove(victim).Close()
	}
}

// crowd returns the peer that has most connections without a request.
func (l *limiter) crowd() *peer {
	most := &peer{silent: list.New()}
	for _, p := range l.peers {
		if p.silent.Len() > most.silent.Len() {
			most = p
		}
	}
	return most
}

// peerOf returns a connection's other end; the zero Addr for what has none, as a socket in the file system.
func peerOf(c net.Conn) netip.Addr {
	if a, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

func (l *limiter) add(c net.Conn, from netip.Addr) net.Conn {
	p := l.peers[from]
	if p == nil {
		p = &peer{silent: list.New()}
		l.peers[from] = p
	}
	of := &limitedConn{Conn: c, limiter: l, from: from, counted: true}
	l.open, p.open = l.open+1, p.open+1
	l.markIdle(of)
	return of
}

// markIdle marks a connection as idle, and closes the peer's oldest idle one if there are too many.
func (l *limiter) markIdle(c *limitedConn) {
	l.wake(c)
	if c.counted {
		p := l.peers[c.from]
		c.idle, c.silent = true, p.silent.PushBack(c)
		for p.idle++; p.idle > l.mostOfPeer; {
			l.remove(p.oldest(true)).Close()
		}
	}
}

// wake notes that a connection has a request.
func (l *limiter) wake(c *limitedConn) {
	if c.silent == nil {
		return
	}
	p := l.peers[c.from]
	p.silent.Remove(c.silent)
	if c.idle {
		p.idle--
	}
	c.idle, c.silent = false, nil
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
	limiter  *limiter
	from     netip.Addr
	counted  bool // it is open, and the limiter knows of it
	requests int  // that are being answered
	idle     bool
	silent   *list.Element // in its peer's list
	ofServer bool          // requests decide whether it is in use, and not bytes; it does not change while others use the connection
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

// stopReadingHead has requests decide from now on. What read the connection's beginning does not read it any more.
func (c *limitedConn) stopReadingHead() {
	c.ofServer = true
	c.use(0)
}

func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.moved(n)
	return n, err
}

func (c *limitedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.moved(n)
	return n, err
}

// moved notes that bytes came or went. A connection that is not a server's is then the last to be closed.
func (c *limitedConn) moved(n int) {
	if n <= 0 || c.ofServer {
		return
	}
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.silent == nil {
		return
	}
	p := c.limiter.peers[c.from]
	p.silent.MoveToBack(c.silent)
	if c.idle {
		c.idle = false
		p.idle--
	}
}

// use counts requests that begin and, by a negative number, end. The request of a connection that a
// handler takes over (http.Hijacker) never ends.
func (c *limitedConn) use(n int) {
	c.limiter.mu.Lock()
	defer c.limiter.mu.Unlock()
	if c.requests += n; c.requests > 0 {
		c.limiter.wake(c)
	} else {
		c.limiter.markIdle(c)
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

// ReadFrom has the kernel copy where bytes need not be noticed.
func (c *limitedConn) ReadFrom(r io.Reader) (int64, error) {
	if c.ofServer {
		return io.Copy(c.Conn, r)
	}
	return io.Copy(struct{ io.Writer }{c}, r)
}
