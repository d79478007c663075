//go:build !linux

package cli

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"packetwalk.dev/internal/session"
)

// TestLabsNeedLinux: what needs a lab, or this machine's kernel, says that it needs Linux.
func TestLabsNeedLinux(t *testing.T) {
	for _, line := range []string{
		"up -f cluster.yaml", "status", "shell -c true", "image list", "walk --from internet --to svc/web --name demo",
		"capture -o x.pwcap.tar.gz", "capture --here -o x.pwcap.tar.gz",
	} {
		t.Run(line, func(t *testing.T) {
			var out, err bytes.Buffer
			status := Main(strings.Fields(line), Streams{In: os.Stdin, Out: &out, Err: &err})
			if status != 1 || out.Len() > 0 || err.String() != "packetwalk: "+session.ErrLinux.Error()+"\n" {
				t.Errorf("status %d, output %q, error %q", status, &out, &err)
			}
		})
	}
}
