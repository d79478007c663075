package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"packetwalk.dev/internal/node/conflict"
)

// livezSocket returns one pod's own address of /livez and /readyz, an abstract Unix socket (unix(7)): at the port of --healthz-bind-address
// may be the service proxy that this one waits for.
func livezSocket(podUID string) string { return "@packetwalk-node/livez/" + podUID }

const (
	livezTime   = 3 * time.Second // for an answer from this node
	livezAnswer = 4 << 10         // of one, in bytes
)

// Livez asks the agent that runs in a pod of this network namespace whether it is alive.
func Livez(ctx context.Context, podUID string) error { return probe(ctx, podUID, "/livez") }

// Readyz asks the agent that runs in a pod of this network namespace whether it is ready.
func Readyz(ctx context.Context, podUID string) error { return probe(ctx, podUID, conflict.ReadyPath) }

func probe(ctx context.Context, podUID, path string) error {
	ctx, cancel := context.WithTimeout(ctx, livezTime)
	defer cancel()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", livezSocket(podUID))
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, livezAnswer))
		return fmt.Errorf("%s: %s", answer.Status, text)
	}
	return nil
}
