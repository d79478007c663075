package app

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// combined returns one line of an access log in Apache's combined format, which nginx's predefined "combined" is too.
func combined(r *request, resp *response, now time.Time) string {
	status := resp.status
	if status == 0 {
		status = 200
	}
	size := resp.length()
	if r.method == "HEAD" {
		size = 0
	}
	return fmt.Sprintf(`%s - - [%s] "%s %s %s" %d %d "%s" "%s"`, r.remote.Addr(), now.UTC().Format("02/Jan/2006:15:04:05 +0000"),
		logged(r.method), logged(r.target), r.proto, status, size, orDash(r.header.Get("Referer")), orDash(r.header.Get("User-Agent")))
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return logged(s)
}

// logged writes what could forge a log line as \xXX, as nginx does.
func logged(s string) string {
	clean := func(c byte) bool { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\' }
	var b strings.Builder
	for i := range len(s) {
		if clean(s[i]) {
			b.WriteByte(s[i])
		} else {
			fmt.Fprintf(&b, `\x%02X`, s[i])
		}
	}
	return b.String()
}

// logCombined logs each request that h answers.
func logCombined(w io.Writer, h handler) handler {
	return func(r *request) response {
		resp := h(r)
		fmt.Fprintln(w, combined(r, &resp, time.Now()))
		return resp
	}
}
