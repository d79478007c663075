package app

import (
	"context"
	"encoding/json"
	"os"
	"strings"
)

// whereami answers each request with who is asked and who asks, as seen from the server's socket: erjosito/whereami.
func whereami(ctx context.Context, p *Process) int {
	return listenHTTP(ctx, p, portArg(p, 80), logCombined(p.Stdout, answerWhereami))
}

type whereamiAnswer struct {
	Hostname     string `json:"hostname"`
	MyAddress    string `json:"my_private_ip"`
	MyPort       uint16 `json:"my_port"`
	YourAddress  string `json:"your_address"`
	YourPort     uint16 `json:"your_port"`
	Host         string `json:"host"`
	ForwardedFor string `json:"x-forwarded-for,omitempty"`
	Method       string `json:"method"`
	Path         string `json:"path_accessed"`
	Browser      string `json:"your_browser,omitempty"`
}

func answerWhereami(r *request) response {
	if r.path == "/healthz" || r.path == "/api/healthcheck" {
		return content("application/json", []byte("{\"health\": \"OK\"}\n"))
	}
	hostname, _ := os.Hostname()
	return jsonResponse(whereamiAnswer{
		Hostname: hostname, MyAddress: r.local.Addr().String(), MyPort: r.local.Port(), YourAddress: r.remote.Addr().String(),
		YourPort: r.remote.Port(),
		Host:     r.host, ForwardedFor: r.forwardedFor(), Method: r.method, Path: r.target, Browser: r.header.Get("User-Agent"),
	})
}

// forwardedFor joins the fields in order, as RFC 9110 (5.3) lets a recipient do.
func (r *request) forwardedFor() string {
	return strings.Join(r.header.Values("X-Forwarded-For"), ", ")
}

func jsonResponse(v any) response {
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return text(500, err.Error()+"\n")
	}
	return content("application/json", append(body, '\n'))
}
