package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// masqAgentAddress is where packetwalk-node, on the node whose network the pod has, tells about its ip-masq agent.
const masqAgentAddress = "127.0.0.1:10249"

// ipMasqAgent stands for the ip-masq-agent in its pod: it prints what the node's agent, which is part of packetwalk-node, logs.
func ipMasqAgent(ctx context.Context, p *Process) int {
	after, told := "0", false
	p.Ready()
	for {
		last, err := followLog(ctx, masqAgentAddress, p.Stdout, after)
		switch {
		case ctx.Err() != nil:
			return 0
		case err != nil && !told:
			fmt.Fprintf(p.Stderr, "the node's agent does not answer: %v\n", err)
			told = true
		case err == nil:
			after, told = last, false
			continue
		}
		select {
		case <-ctx.Done():
			return 0
		case <-time.After(time.Second):
		}
	}
}

// followLog prints the lines after one of a number, waiting for the first of them, and gives the number of the last.
func followLog(ctx context.Context, agent string, out io.Writer, after string) (last string, err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", agent)
	if err != nil {
		return after, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	fmt.Fprintf(conn, "GET /ip-masq-agent/log?after=%s HTTP/1.0\r\nHost: %s\r\n\r\n", after, agent)
	lines := bufio.NewScanner(conn)
	if !lines.Scan() {
		return after, errors.Join(io.ErrUnexpectedEOF, lines.Err())
	}
	if status := lines.Text(); !strings.Contains(status, " 200 ") {
		return after, fmt.Errorf("it answers %q", status)
	}
	for lines.Scan() && lines.Text() != "" { // the header
	}
	for lines.Scan() {
		number, text, _ := strings.Cut(lines.Text(), " ")
		after = number
		fmt.Fprintln(out, text)
	}
	return after, lines.Err()
}
