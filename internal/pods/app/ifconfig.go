package app

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/netutil"
)

// ifconfigCo returns the internet host that answers with its caller's address: ifconfig.co, mpolden/echoip.
func ifconfigCo(ctx context.Context, p *Process) int {
	return listenHTTP(ctx, p, portArg(p, 80), logCombined(p.Stdout, answerIfconfig))
}

type ifconfigAnswer struct {
	IP        string      `json:"ip"`
	IPDecimal json.Number `json:"ip_decimal"`
	Port      uint16      `json:"port"`
	UserAgent *userAgent  `json:"user_agent,omitempty"`
}

type userAgent struct {
	Product string `json:"product,omitempty"`
	Version string `json:"version,omitempty"`
	Raw     string `json:"raw_value"`
}

// answerIfconfig differs from the original in that / is text for every client, browsers too: there is no page. /port answers with the
// caller's port, which shows outbound port blocks.
func answerIfconfig(r *request) response {
	address := r.remote.Addr()
	wantsJSON := r.path == "/" && strings.HasPrefix(r.header.Get("Accept"), "application/json")
	switch {
	case r.path == "/json" || wantsJSON:
		return ifconfigJSON(r)
	case r.path == "/" || r.path == "/ip":
		return text(200, address.String()+"\n")
	case r.path == "/port":
		return text(200, fmt.Sprintln(r.remote.Port()))
	case strings.HasPrefix(r.path, "/port/"):
		return answerPort(r)
	case r.path == "/health":
		return content("application/json", []byte(`{"status":"OK"}`))
	}
	return text(404, "404 page not found")
}

func ifconfigJSON(r *request) response {
	answer := ifconfigAnswer{IP: r.remote.Addr().String(), IPDecimal: json.Number(decimal(r.remote.Addr())), Port: r.remote.Port()}
	if raw := r.header.Get("User-Agent"); raw != "" {
		first, _, _ := strings.Cut(raw, " ")
		product, version, _ := strings.Cut(first, "/")
		answer.UserAgent = &userAgent{product, version, raw}
	}
	return jsonResponse(answer)
}

// decimal returns an address as one number: the bytes in network order.
func decimal(a netip.Addr) string {
	if a.Is4() {
		b := a.As4()
		return strconv.FormatUint(uint64(binary.BigEndian.Uint32(b[:])), 10)
	}
	// Long division by ten, digit by digit from the right: math/big for this one place would be the larger part of the program.
	b := a.As16()
	var digits []byte
	for {
		rest, zero := 0, true
		for i := range b {
			rest = rest<<8 | int(b[i])
			b[i] = byte(rest / 10)
			rest %= 10
			zero = zero && b[i] == 0
		}
		digits = append([]byte{byte('0' + rest)}, digits...)
		if zero {
			return string(digits)
		}
	}
}

// answerPort says whether the caller's address accepts a TCP connection on a port, as /port/8080 does there.
func answerPort(r *request) response {
	port, err := strconv.ParseUint(strings.TrimPrefix(r.path, "/port/"), 10, 16)
	if err != nil || port == 0 {
		return text(400, "invalid port: "+strings.TrimPrefix(r.path, "/port/"))
	}
	target := netip.AddrPortFrom(r.remote.Addr(), uint16(port))
	conn, err := net.DialTimeout("tcp", target.String(), 2*time.Second)
	if err == nil {
		conn.Close()
	}
	return jsonResponse(map[string]any{"ip": target.Addr().String(), "port": port, "reachable": err == nil})
}

// hello returns a service of no particular kind: one line with the server and the client.
func hello(ctx context.Context, p *Process) int {
	return listenHTTP(ctx, p, portArg(p, 80), logCombined(p.Stdout, func(r *request) response {
		hostname, _ := os.Hostname()
		return text(200, fmt.Sprintf("hello from %s (%s) to %s\n", hostname, r.local.Addr(), r.remote))
	}))
}

// echo sends back what it is sent, on TCP and UDP port 7 (RFC 862) and, over HTTP, the request as it came on port 80.
func echo(ctx context.Context, p *Process) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	tcp, udp, err := listenBoth(ctx, ":7")
	if err != nil {
		fmt.Fprintf(p.Stderr, "echo: %v\n", err)
		return 1
	}
	go echoTCP(tcp)
	go echoUDP(udp)
	return listenHTTP(ctx, p, portArg(p, 80), logCombined(p.Stdout, func(r *request) response {
		return text(200, r.dump()+"\r\n\r\n"+string(r.body))
	}))
}

// maxConnections is how many echo has at once; more wait in the kernel's queue. Tests have fewer.
var maxConnections = 8192

// echoIdle is how long a connection may say nothing: longer than anything on the way keeps an idle flow.
const echoIdle = 3 * time.Hour

func echoTCP(ln net.Listener) {
	ln = netutil.LimitListener(ln, maxConnections)
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors are left, as a rule
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go func() {
			defer conn.Close()
			buf := make([]byte, 16<<10)
			for n, err := 0, error(nil); err == nil; {
				_ = conn.SetDeadline(time.Now().Add(echoIdle))
				if n, err = conn.Read(buf); err == nil {
					_ = conn.SetDeadline(time.Now().Add(time.Minute))
					_, err = conn.Write(buf[:n])
				}
			}
		}()
	}
}

func echoUDP(conn net.PacketConn) {
	buf := make([]byte, 64<<10)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		_, _ = conn.WriteTo(buf[:n], from)
	}
}

// portArg returns the port that "--port=N" or the environment's PORT give, else the default.
func portArg(p *Process, port int) int {
	for _, pair := range p.Env {
		if v, ok := strings.CutPrefix(pair, "PORT="); ok {
			port = atoiOr(v, port)
		}
	}
	for i, arg := range p.Args {
		if v, ok := strings.CutPrefix(arg, "--port="); ok {
			port = atoiOr(v, port)
		} else if arg == "--port" && i+1 < len(p.Args) {
			port = atoiOr(p.Args[i+1], port)
		}
	}
	return port
}

func atoiOr(s string, otherwise int) int {
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n < 1<<16 {
		return n
	}
	return otherwise
}

// listenBoth listens on an address of TCP and of UDP until ctx ends.
func listenBoth(ctx context.Context, address string) (tcp net.Listener, udp net.PacketConn, err error) {
	if tcp, err = net.Listen("tcp", address); err != nil {
		return nil, nil, err
	}
	if udp, err = net.ListenPacket("udp", address); err != nil {
		tcp.Close()
		return nil, nil, err
	}
	context.AfterFunc(ctx, func() { tcp.Close(); udp.Close() })
	return tcp, udp, nil
}
