package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"packetwalk.dev/internal/lab/plan"
)

// AskTimeout is how long a node's agent may take to tell about itself. One that does not is another problem's.
const AskTimeout = time.Second

// AskAgents asks the nodes' agents for a JSON report, all at once. A report is empty where the agent does not answer.
func AskAgents[T any](l *Nodes, path string) []T {
	nodes := l.List()
	reports := make([]T, len(nodes))
	var asked sync.WaitGroup
	for i, n := range nodes {
		asked.Go(func() { reports[i] = askAgent[T](n, path) })
	}
	asked.Wait()
	return reports
}

// askAgent returns the agent's report, empty where the agent does not answer.
func askAgent[T any](n *Node, path string) (report T) {
	if json.Unmarshal(askNode(n, plan.AgentPort, path), &report) != nil {
		return *new(T)
	}
	return report
}

// longestAnswer is how long an answer may be, in bytes.
const longestAnswer = 4 << 20

// askNode returns what a process of a node answers at a port of 127.0.0.1: empty where it does not, or not in full.
func askNode(n *Node, port int, path string) []byte {
	if status, text := getFromNode(n, port, path); status == http.StatusOK {
		return text
	}
	return nil
}

// getFromNode returns the HTTP status and the body of an answer at a port of 127.0.0.1 of a node, status 0 where there is none.
func getFromNode(n *Node, port int, path string) (status int, body []byte) {
	ctx, cancel := context.WithTimeout(context.Background(), AskTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: n.ns.Dial, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(port)+path, nil)
	if err != nil {
		return 0, nil
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(io.LimitReader(resp.Body, longestAnswer)); err != nil {
		return 0, nil
	}
	return resp.StatusCode, body
}

// JoinReports says once what several of a number of nodes say, and how many do.
func JoinReports(who string, nodes int, said []string) (lines []string) {
	count := map[string]int{}
	for _, text := range said {
		count[text]++
	}
	for _, text := range slices.Sorted(maps.Keys(count)) {
		lines = append(lines, fmt.Sprintf("%s of %d of %d nodes: %s", who, count[text], nodes, text))
	}
	return lines
}
