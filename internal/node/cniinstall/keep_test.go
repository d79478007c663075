package cniinstall

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestWithPodRange: only who asks for the range needs it.
func TestWithPodRange(t *testing.T) {
	find := func() (netip.Prefix, error) { return netip.MustParsePrefix("10.244.1.0/24"), nil }
	got, err := WithPodRange([]byte(`{"a": [{"subnet": "usePodCidr", "n": 12345678901234567890}], "b": "usePodCidrs"}`), find)
	if want := `{"a":[{"n":12345678901234567890,"subnet":"10.244.1.0/24"}],"b":"usePodCidrs"}`; err != nil ||
		strings.Join(strings.Fields(string(got)), "") != want {
		t.Errorf("%s, %v", got, err)
	}
	none := func() (netip.Prefix, error) { return netip.Prefix{}, errors.New("no range") }
	if got, err := WithPodRange([]byte(`{"b":  1}`), none); err != nil || string(got) != `{"b":  1}` {
		t.Errorf("without: %s, %v", got, err)
	}
	for _, text := range []string{`["usePodCidr"]`, "{"} {
		if _, err := WithPodRange([]byte(text), none); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

// TestKeep checks that Keep removes the installation when it ends only if it is certain that all installers have been deleted. What another
// process removes meanwhile comes back.
func TestKeep(t *testing.T) {
	for name, c := range map[string]struct {
		gone   bool
		err    error
		asks   bool
		owner  string // who installs last
		stays  bool
		logged string
	}{
		"not asked":   {stays: true, logged: "plugin and configuration stay on the node"},
		"replaced":    {asks: true, stays: true, logged: "plugin and configuration stay on the node"},
		"deleted":     {asks: true, gone: true, logged: "removed what was installed"},
		"not known":   {asks: true, err: errors.New("no rights"), stays: true, logged: "stay on the node: no rights"},
		"in between":  {asks: true, gone: true, owner: "another", stays: true, logged: "another has installed since"},
		"no API left": {asks: true, err: context.DeadlineExceeded, stays: true, logged: "stay on the node"},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newNode(t)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var lines strings.Builder
				done := make(chan error)
				failed := true
				var deleted func(context.Context) (bool, error)
				if c.asks {
					deleted = func(ctx context.Context) (bool, error) { return c.gone, errors.Join(c.err, ctx.Err()) }
				}
				go func() {
					done <- Keep(ctx, func(context.Context) (Options, error) {
						if failed {
							return Options{}, errors.New("no range yet")
						}
						return n.options(0), nil
					}, deleted, slog.New(slog.NewTextHandler(&lines, nil)))
				}()
				synctest.Wait()
				failed = false
				time.Sleep(lookTime + time.Second)
				if err := Check(n.dirs, ""); err != nil {
					t.Error(err)
				}
				write(t, n.dirs.Bin, Plugin, "not right")
				if _, err := Remove(n.dirs, ""); err != nil {
					t.Error(err)
				}
				n.must(t, nil, removeFile(n, Plugin))
				time.Sleep(lookTime + time.Second)
				if err := Check(n.dirs, ""); err != nil {
					t.Errorf("removed meanwhile: %v", err)
				}
				if c.owner != "" {
					o := n.options(0)
					o.Owner = c.owner
					if _, err := Install(o); err != nil {
						t.Error(err)
					}
				}
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
				if stays := Check(n.dirs, "") == nil; stays != c.stays {
					t.Errorf("it is there: %v", stays)
				}
				all := strings.Split(strings.TrimSpace(lines.String()), "\n")
				if !strings.Contains(all[0], `level=WARN msg="not installed: no range yet"`) || !strings.Contains(all[len(all)-1], c.logged) {
					t.Errorf("said %q", all)
				}
			})
		})
	}
}
