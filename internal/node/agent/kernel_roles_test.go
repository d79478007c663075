package agent

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// quickTiming lets the agents of these tests wait less for other processes. The usual times are tested in package takeover.
var quickTiming = timing{quiet: 2 * time.Second, leave: 4 * time.Second, canary: time.Second, listen: time.Second}

func playAgent(path string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	source := &fileSource{path: path, changed: make(chan struct{}, 1)}
	a := newAgent(source.read().Options, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	a.setSource(source)
	a.timing = quickTiming
	if a.CleanupOnDelete != "" {
		a.owner, a.timing.leave = source, 20*time.Second // the test sees meanwhile that the rules follow changes
	}
	if a.IPMasqAgent {
		a.addMasqAgent(&fileConfigs{fileSource{path: path, changed: make(chan struct{}, 1)}})
	}
	err := a.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// playEndpoint answers each line on TCP port 80 and each packet on UDP port 53 with its name and the caller's address.
func playEndpoint(name string) {
	udp, err := net.ListenPacket("udp", ":53")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		buffer := make([]byte, 2048)
		for {
			_, from, err := udp.ReadFrom(buffer)
			if err != nil {
				log.Fatal(err)
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = udp.WriteTo([]byte(name+" "+host), from)
		}
	}()
	tcp, err := net.Listen("tcp", ":80")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ready")
	for {
		c, err := tcp.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go func() {
			defer func() { _ = c.Close() }()
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			for lines := bufio.NewScanner(c); lines.Scan(); {
				_, _ = fmt.Fprintln(c, name, host)
			}
		}()
	}
}

// playClient connects with patience, sends a line for each of its standard input over one connection and prints the answers or the error.
func playClient(network, address string, patience time.Duration) {
	c, err := net.DialTimeout(network, address, patience)
	if err != nil {
		fmt.Println("error:", err)
		return
	}
	buffer := make([]byte, 2048)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := fmt.Fprintln(c, "hello"); err != nil {
			fmt.Println("error:", err)
			return
		}
		n, err := c.Read(buffer)
		if err != nil {
			fmt.Println("error:", err)
			return
		}
		fmt.Println(strings.TrimSpace(string(buffer[:n])))
	}
}
