//go:build linux

package cli

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"packetwalk.dev/internal/lab"
)

// TestProgress prints what a lab waits for while no step comes, and nothing between steps that come soon.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var out strings.Builder
		p := newProgress(&out)
		go p.watch(ctx, &out, func(context.Context) string { return "waits for etcd" })
		sleep := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		sleep(2 * time.Second)
		p.step(lab.Step{Text: "one"})
		sleep(2 * time.Second)
		p.step(lab.Step{Text: "two"})
		sleep(7 * time.Second)
		p.step(lab.Step{Text: "of the end", Ready: true})
		cancel()
		synctest.Wait()
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.TrimSpace(line[strings.Index(line, "s  ")+1:]))
		}
		if got, want := strings.Join(lines, ", "), "one, two, waits for etcd, waits for etcd"; got != want {
			t.Errorf("got %s, want %s\n%s", got, want, out.String())
		}
	})
}

// TestAfterInterrupt says what is left of a lab.
func TestAfterInterrupt(t *testing.T) {
	here := lab.Dir(t.TempDir())
	for _, tt := range []struct {
		name    string
		dir     lab.Dir
		existed bool
		want    string
	}{
		{"removed", here + "/x", false, `nothing of lab "x" is left`},
		{"a running lab", here, true, "is still there: "},
		{"not removed", here, false, "is not removed whole; "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := afterInterrupt(tt.dir, tt.existed, context.Canceled); !strings.Contains(got, tt.want) {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
