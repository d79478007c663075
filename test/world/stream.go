package world

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"
)

// openConnections is how many connections each client keeps open all the time, and enoughConnections how many new ones it makes at least.
const (
	openConnections   = 10
	enoughConnections = 100
)

// Stream asks a web server, over connections that stay open and over new ones, one after the other.
type Stream struct {
	host string
	ask  func() (string, error)
	end  func()
}

// Check ends the client, and with it what was lost in the meantime, unless a gap is not ours.
func (c *Stream) Check(t *testing.T, change string, gap bool) {
	t.Helper()
	var got connections
	eventually.Succeeds(t, time.Minute, func() error {
		if got = c.report(t); got.made < enoughConnections {
			return fmt.Errorf("%s: %+v", c.host, got)
		}
		return nil
	})
	c.end()
	text := fmt.Sprintf("%s, from %s: %d of %d open connections answer, %d of %d new ones were lost, the slowest took %v s%s", change, c.host,
		got.open, openConnections, got.lost, got.made+got.lost, got.longest, got.first)
	if (got.open != openConnections || got.lost > 0) && !gap {
		t.Error(text)
	} else {
		t.Log(text)
	}
}

// countScript counts what curl wrote to the file $made: lines with status 200, others, the longest time in them, and the first of the others.
// Curl writes a line a word at a time: what it has not ended yet is no line.
const countScript = `count() {
  head -n "$(wc -l <"$made")" "$made" | awk 'BEGIN { longest = 0 } $1 == 200 { good++ } $1 != 200 && !first { first = $0 } $2 > longest { longest = $2 }
    END { print good + 0, NR - good, longest, first }'
}
`

// streamScript makes up to a hundred connections a second, each with one request, and has curl write a line for each: the status of the
// answer, or 000 when there was none within ten seconds, which is past three lost packets, how long it took in seconds, and the error. For
// each line that it reads it asks over the open connections, counts all, and tells how long the longest took and the first error.
const streamScript = countScript + `made=$(mktemp)
curl -s -m 10 --rate 100/s -H 'Connection: close' -o /dev/null -w '%{stderr}%{http_code} %{time_total} %{time_connect} port %{local_port}: %{errormsg}\n' "http://$1/?[1-1000000]" 2>"$made" </dev/null &
stream=$!
trap 'kill $stream; rm "$made"' EXIT
request=$'HEAD / HTTP/1.1\r\nHost: web\r\n\r\n'
for i in $(seq $2); do exec {fd}<>/dev/tcp/$1/80; fds="$fds $fd"; done
while read -r line; do
  open=0
  for fd in $fds; do
    printf "%s" "$request" >&$fd || continue
    read -r -t 10 answer <&$fd && case "$answer" in *" 200 "*) open=$((open + 1));; esac
    while read -r -t 10 rest <&$fd && [ "$rest" != $'\r' ]; do :; done
  done
  echo $open $(count)
done`

// NewStream has a host ask at an address, over connections that are open when it returns.
func NewStream(t *testing.T, w *World, host, address string) *Stream {
	t.Helper()
	in, out, end := w.Talk(t, host, streamScript, address, strconv.Itoa(openConnections))
	c := &Stream{host: host, end: end, ask: func() (string, error) {
		fmt.Fprintln(in, "report")
		return out.ReadString('\n')
	}}
	eventually.Succeeds(t, time.Minute, func() error {
		if got := c.report(t); got.open != openConnections || got.made == 0 || got.lost > 0 {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	return c
}

// connections are how many of the open ones answer, how many new ones were made and lost so far, how many seconds the longest took, and what
// curl said of the first that was lost.
type connections struct {
	open, made, lost int
	longest          float64
	first            string
}

func (c *Stream) report(t *testing.T) (got connections) {
	t.Helper()
	line, err := c.ask()
	if err == nil {
		_, err = fmt.Sscan(line, &got.open, &got.made, &got.lost, &got.longest)
	}
	if _, lost, found := strings.Cut(line, " 000 "); found {
		got.first = "; the first that was lost: 000 " + strings.TrimSpace(lost)
	}
	if err != nil {
		t.Fatalf("the client on %s says %q: %v", c.host, line, err)
	}
	return got
}
