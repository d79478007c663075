package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A Registry is one that the user allows to be at an address that is not public.
type Registry struct {
	Host  string // HOST:PORT
	Plain bool   // it may be asked without TLS
}

// ParseRegistry reads HOST[:PORT], or http://HOST[:PORT] for one without TLS.
func ParseRegistry(s string) (Registry, error) {
	rest, plain := strings.CutPrefix(s, "http://")
	rest = strings.TrimPrefix(rest, "https://")
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		host, port = strings.Trim(rest, "[]"), "443"
		if plain {
			port = "80"
		}
	}
	wrong := host == "" || strings.ContainsAny(host, "/@ \\?#%") || strings.Contains(host, ":") && !netipLiteral(host)
	if n, err := net.LookupPort("tcp", port); wrong || err != nil || n == 0 {
		return Registry{}, fmt.Errorf("%q is no registry such as registry.example:5000, or http://localhost:5000 for one without TLS", s)
	}
	return Registry{strings.ToLower(net.JoinHostPort(host, port)), plain}, nil
}

func netipLiteral(s string) bool { _, err := netip.ParseAddr(s); return err == nil }

// plain reports whether a registry, as an image's name has it, may be asked without TLS.
func plain(allowed []Registry, host string) bool {
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "80")
	}
	return slices.Contains(allowed, Registry{strings.ToLower(host), true})
}

// special are the ranges that are not the internet's (IANA's registries of special-purpose addresses), and those through which IPv4
// addresses of such ranges can be reached; and the address of Azure's platform, which answers virtual machines only.
var special = func() (list []netip.Prefix) {
	for _, p := range []string{
		"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
		"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3", "168.63.129.16/32",
		"::/8", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7",
		"fe80::/10", "fec0::/10", "ff00::/8",
	} {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}()

// public reports whether an address is one of the internet.
func public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return !slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(a) })
}

// never reports whether an address is refused for every registry: link-local ones, where clouds tell virtual machines their secrets.
func never(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()
}

// The times of a connection. What stands still that long has failed.
const (
	dialTime  = 5 * time.Second // with the look-up of the name
	stallTime = 30 * time.Second
	redirects = 10 // in a row, as net/http has it
)

// A guard sends requests to where they may go. It looks at each address that is dialled, after all names were looked up, so that no
// redirect and no name server leads elsewhere; proxies of the environment are not used, because they look up names themselves.
type guard struct {
	allowed     []Registry
	inner       *http.Transport
	wait, stall time.Duration // for a connection, and for what comes
}

func newGuard(allowed []Registry) *guard {
	g := &guard{allowed: allowed, wait: dialTime, stall: stallTime}
	g.inner = &http.Transport{
		DialContext: g.dial, TLSHandshakeTimeout: 2 * dialTime, ResponseHeaderTimeout: stallTime, MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: stallTime,
	}
	return g
}

// errAddress is that an address is not the internet's.
var errAddress = errors.New("not an address of the internet")

func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	configured := slices.ContainsFunc(g.allowed, func(r Registry) bool { return r.Host == strings.ToLower(address) })
	d := net.Dialer{Timeout: g.wait, Control: func(_, to string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(to)
		switch {
		case err != nil:
			return err
		case never(at.Addr()):
			return fmt.Errorf("%s is refused: %s is %w, and no registry is there", address, at.Addr(), errAddress)
		case !configured && !public(at.Addr()):
			return fmt.Errorf("%s is refused: %s is %w; allow the registry: spec.images.privateRegistries, or --private-registry", address,
				at.Addr(), errAddress)
		}
		return nil
	}}
	return d.DialContext(ctx, network, address)
}

// RoundTrip sends one request. Its body's pieces must come in time.
func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !plain(g.allowed, r.URL.Host) {
		return nil, fmt.Errorf("refusing to ask %s without TLS; to allow it, add http://%s to spec.images.privateRegistries, or use --private-registry",
			r.URL.Host, r.URL.Host)
	}
	n := 0
	for by := r.Response; by != nil && by.Request != nil; by = by.Request.Response {
		n++
	}
	if n > redirects {
		return nil, fmt.Errorf("%s redirects more than %d times", r.URL.Host, redirects)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	stalled := fmt.Errorf("%s has sent nothing for %v", r.URL.Host, g.stall)
	timer := time.AfterFunc(g.stall, func() { cancel(stalled) })
	resp, err := g.inner.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		cancel(nil)
		return nil, err
	}
	resp.Body = &body{resp.Body, ctx, cancel, timer, g.stall}
	return resp, nil
}

// A body is one each piece of which must come in time.
type body struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	stall  time.Duration
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if cause := context.Cause(b.ctx); err != nil && cause != nil {
		return n, cause
	}
	b.timer.Reset(b.stall)
	return n, err
}

func (b *body) Close() error {
	b.timer.Stop()
	b.cancel(nil)
	return b.ReadCloser.Close()
}
