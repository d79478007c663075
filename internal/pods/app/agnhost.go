package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// agnhost does what registry.k8s.io/e2e-test-images/agnhost does: the subcommands netexec, serve-hostname, pause and connect
// (github.com/kubernetes/kubernetes, test/images/agnhost).
func agnhost(ctx context.Context, p *Process) int {
	command := "pause"
	if len(p.Args) > 1 {
		command = p.Args[1]
	}
	switch command {
	case "netexec":
		return netexec(ctx, p)
	case "serve-hostname":
		return listenHTTP(ctx, p, flagValue(p.Args, "port", 9376), func(*request) response { return text(200, hostname()) })
	case "pause":
		return pause(ctx, p)
	case "connect":
		return connect(ctx, p)
	}
	fmt.Fprintf(p.Stderr, "agnhost: unknown command %q; there are netexec, serve-hostname, connect and pause\n", command)
	return 1
}

func hostname() string {
	name, _ := os.Hostname()
	return name
}

// flagValue returns the number that "--name=N" or "--name N" gives.
func flagValue(args []string, name string, otherwise int) int {
	for i, arg := range args {
		value, ok := strings.CutPrefix(arg, "--"+name+"=")
		if !ok && arg == "--"+name && i+1 < len(args) {
			value, ok = args[i+1], true
		}
		if n, err := strconv.Atoi(value); ok && err == nil {
			return n
		}
	}
	return otherwise
}

// netexec answers /, /clientip, /hostname, /echo, /healthz, /shell, /redirect, /exit and /shutdown, and "hostname", "clientip" and "echo
// TEXT" over UDP.
func netexec(ctx context.Context, p *Process) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if port := flagValue(p.Args, "udp-port", 8081); port >= 0 {
		conn, err := net.ListenPacket("udp", ":"+strconv.Itoa(port))
		if err != nil {
			fmt.Fprintf(p.Stderr, "agnhost: %v\n", err)
			return 1
		}
		context.AfterFunc(ctx, func() { conn.Close() })
		go netexecUDP(conn)
	}
	signal.Reset(syscall.SIGCHLD) // /shell waits for its children
	code := 0
	served := listenHTTP(ctx, p, flagValue(p.Args, "http-port", 8080), func(r *request) response {
		fmt.Fprintf(p.Stdout, "%s GET %s\n", kuardTime(), logged(r.target))
		if r.path == "/exit" || r.path == "/shutdown" {
			code = atoiOr(r.values().Get("code"), 0)
			cancel()
			return response{close: true}
		}
		return answerNetexec(ctx, r)
	})
	return max(served, code)
}

func answerNetexec(ctx context.Context, r *request) response {
	q := r.values()
	switch r.path {
	case "/":
		return text(200, fmt.Sprintf("NOW: %v", time.Now()))
	case "/clientip":
		return text(200, r.remote.String())
	case "/hostname", "/hostName":
		return text(200, hostname())
	case "/healthz":
		return text(200, "")
	case "/header":
		return text(200, r.header.Get(q.Get("key")))
	case "/echo":
		return text(atoiOr(q.Get("code"), 200), q.Get("msg"))
	case "/redirect":
		return response{status: atoiOr(q.Get("code"), 302), header: map[string]string{"Location": q.Get("location")}}
	case "/shell":
		return shell(ctx, q.Get("shellCommand")+q.Get("cmd"))
	}
	return text(404, "404 page not found\n")
}

const (
	shellLimit  = time.Minute // how long a command of /shell may run
	shellOutput = 1 << 20     // how many bytes it may print; at one more it gets SIGPIPE
)

// shell answers what a command prints, and how it failed. Those that it leaves behind do not keep the answer.
func shell(ctx context.Context, command string) response {
	ctx, cancel := context.WithTimeoutCause(ctx, shellLimit, fmt.Errorf("it did not end within %v and was killed", shellLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.WaitDelay = time.Second
	out := &limitedBuffer{room: shellOutput}
	cmd.Stdout, cmd.Stderr = out, out
	err := run(cmd)
	answer := map[string]string{}
	if out.kept.Len() > 0 {
		answer["output"] = out.kept.String()
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		answer["error"] = err.Error()
	}
	return jsonResponse(answer)
}

// limitedBuffer keeps what is written until there is no room for it.
type limitedBuffer struct {
	kept bytes.Buffer // not embedded: its ReadFrom has no limit
	room int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	n, _ := b.kept.Write(p[:min(len(p), b.room-b.kept.Len())])
	if n < len(p) {
		return n, fmt.Errorf("it printed more than %d bytes, which is the most that is kept", b.room)
	}
	return n, nil
}

func netexecUDP(conn net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if answer := answerUDP(strings.TrimSpace(string(buf[:n])), addrPort(from).String()); answer != "" {
			_, _ = conn.WriteTo([]byte(answer), from)
		}
	}
}

func answerUDP(command, from string) string {
	word, rest, _ := strings.Cut(command, " ")
	switch strings.ToLower(word) {
	case "hostname":
		return hostname()
	case "clientip":
		return from
	case "echo":
		return rest
	}
	return ""
}

// connect tries a TCP connection: agnhost connect HOST:PORT [--timeout=1s]. The words on failure are the original's.
func connect(ctx context.Context, p *Process) int {
	target, timeout := "", time.Second
	for _, arg := range p.Args[2:] {
		if v, ok := strings.CutPrefix(arg, "--timeout="); ok {
			if d, err := time.ParseDuration(v); err == nil {
				timeout = d
			}
		} else if !strings.HasPrefix(arg, "-") {
			target = arg
		}
	}
	p.Ready()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err == nil {
		conn.Close()
		return 0
	}
	word := "OTHER: " + err.Error()
	switch {
	case strings.Contains(err.Error(), "refused"):
		word = "REFUSED"
	case ctx.Err() != nil || strings.Contains(err.Error(), "timeout"):
		word = "TIMEOUT"
	case strings.Contains(err.Error(), "no such host"):
		word = "DNS: " + err.Error()
	}
	_, _ = io.WriteString(p.Stderr, word+"\n")
	return 1
}

// pause does nothing until it is told to end, as registry.k8s.io/pause does.
func pause(ctx context.Context, p *Process) int {
	p.Ready()
	<-ctx.Done()
	return 0
}
