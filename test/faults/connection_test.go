package faults

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	"packetwalk.dev/test/world"
)

// openConnection is a connection from a host to a web server that stays open.
type openConnection struct {
	in  io.Writer
	out *bufio.Reader
}

// askScript sends a request for each line of input, and writes the first line of the answer. The server ends a connection that is idle for
// 75 s: after 30 s without a line there is a request, too.
const askScript = `exec 3<>/dev/tcp/$1/80
ask() {
	printf 'HEAD / HTTP/1.1\r\nHost: web\r\n\r\n' >&3
	read -r -t 20 status <&3; line=$status
	while [ -n "${line%$'\r'}" ]; do read -r -t 20 line <&3 || break; done
}
while :; do
	read -r -t 30 line
	case $? in
	0) ask; echo "$status";;
	1) exit;;
	*) ask;;
	esac
done`

// open opens a connection and asks once.
func open(t *testing.T, w *world.World, host, address string) openConnection {
	t.Helper()
	in, out, _ := w.Talk(t, host, askScript, address)
	c := openConnection{in, out}
	c.ask(t, "at the start")
	return c
}

// ask sends a request over the connection, which must be answered.
func (c openConnection) ask(t *testing.T, when string) {
	t.Helper()
	if _, err := fmt.Fprintln(c.in, "ask"); err != nil {
		t.Fatalf("the open connection, %s: %v", when, err)
	}
	if line, err := c.out.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
		t.Fatalf("the open connection, %s: %q, %v", when, line, err)
	}
}
