package claims

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"packetwalk.dev/test/world"
)

// named runs a command in a pod until the cluster's DNS answers, which comes up a second or two after the cluster.
func named(t *testing.T, w *world.World, pod string, command ...string) (out string) {
	t.Helper()
	eventually.Succeeds(t, 30*time.Second, func() (err error) {
		out, err = w.Try(20*time.Second, append([]string{"kubectl", "--name", w.Name, "exec", pod, "--"}, command...)...)
		return err
	})
	return strings.TrimSpace(out)
}

// TestB2: by name, through the cluster's DNS.
func TestB2(t *testing.T) {
	t.Parallel()
	o := outboundWorld(t)
	if got := named(t, o.World, "ubuntu", "curl", "-sS", "--max-time", "5", "ifconfig.co"); got != o.vip {
		t.Errorf("ifconfig.co sees %s, want the front end %s", got, o.vip)
	}
	if got := o.Kubectl(t, "exec", "ubuntu", "--", "cat", "/etc/resolv.conf"); got != "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.0.0.10\noptions ndots:5\n" {
		t.Errorf("resolv.conf of the pod:\n%s", got)
	}
	expect(t, o.Kubectl(t, "exec", "ubuntu", "--", "nslookup", "kubernetes.default.svc.cluster.local"), `^Server:\s+10\.0\.0\.10$`,
		`^Address: 10\.0\.0\.1$`)
	expect(t, o.Kubectl(t, "get", "svc", "-n", "kube-system"), `^kube-dns +ClusterIP +10\.0\.0\.10 +<none> +53/UDP,53/TCP `)
	// Those who need not ask the cluster ask Azure, and internet hosts the internet.
	for host, want := range map[string]string{part1Node: "203.0.113.", "testvm": "203.0.113.", "client": client} {
		if got := o.SSH(t, host, "curl", "-sS", "--max-time", "5", "ifconfig.co"); !strings.HasPrefix(got, want) {
			t.Errorf("ifconfig.co sees %s as %q", host, got)
		}
	}
	if out, err := o.Try(20*time.Second, "kubectl", "--name", o.Name, "exec", "ubuntu", "--", "nslookup", "no.such.name"); err == nil {
		t.Errorf("an unknown name: %s", out)
	}
	expect(t, agrees(t, o.World, "pod/ubuntu", "internet/ifconfig.co:80"),
		`^the destination sees `+regexp.QuoteMeta(o.vip)+`:\d+, after 2 translations\n- on node `+part1Node)
	expect(t, agrees(t, o.World, "pod/ubuntu", "svc/kube-system/kube-dns:53"), `kube-system/kube-dns:dns-tcp: pod kube-system/coredns-`)
}
