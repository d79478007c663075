package hosts

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestRepair takes a VM's setting and file away: the status names each, and Repair makes it again.
func TestRepair(t *testing.T) {
	ns := netnstest.Create(t, filepath.Join(t.TempDir(), "ns"))
	l := &Hosts{Env: &lifecycle.Env{Dir: layout.Dir(t.TempDir())}}
	m := &host{Host: status.Host{Name: "firewall", Kind: status.KindVM, IPForwarding: true}, ns: ns}
	l.all = []*host{m}
	if err := l.configure(m); err != nil {
		t.Fatal(err)
	}
	problems := func() []string {
		s := status.New("lab", 1)
		l.Report(&s)
		return s.Problems
	}
	if got := problems(); len(got) > 0 {
		t.Fatalf("problems at the start: %q", got)
	}
	for _, c := range []struct{ name, remove, want string }{
		{"forwarding", "echo 0 > /proc/sys/net/ipv4/ip_forward", "firewall: setting net/ipv4/ip_forward=1 is missing"},
		{"resolv.conf", "rm " + l.Dir.Host("firewall") + "/resolv.conf", "firewall: file /etc/resolv.conf is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			netnstest.Script(t, ns, c.remove)
			if got := problems(); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
				t.Errorf("problems: %q, want %q", got, c.want)
			}
			if got, err := l.Repair(t.Context()); err != nil || !slices.Equal(got, []string{c.want}) {
				t.Errorf("repaired: %q, %v", got, err)
			}
			if got := problems(); len(got) > 0 {
				t.Errorf("problems after the repair: %q", got)
			}
		})
	}
}
