package agent

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/testing/kerneltest"
)

// newTestNamespace returns a namespace for an agent.
func newTestNamespace(t *testing.T) *netns.Namespace {
	t.Helper()
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ns.Remove(); err != nil {
			t.Error(err)
		}
	})
	return ns
}

// TestRemoveRules: nothing of packetwalk is left on the node; rules that a program of others keeps stay, as do all other rules, and while a
// packetwalk-node runs nothing is removed.
func TestRemoveRules(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	const (
		table   = "table ip " + nftables.TableName
		proxy   = "KUBE-SERVICES"
		masq    = "IP-MASQ-AGENT"
		kubenet = "kubenet: SNAT for outbound traffic from cluster"
		another = "10.9.9.9"
	)
	for name, c := range map[string]struct {
		runs   string // a process on the node
		stays  []string
		says   string
		failed bool
	}{
		"nothing runs":          {stays: []string{another}},
		"kube-proxy runs":       {runs: "kube-proxy", stays: []string{another, proxy}, says: "made of iptables stay: kube-proxy (pid"},
		"another ip-masq-agent": {runs: "ip-masq-agent-v2", stays: []string{another, masq}, says: "IP-MASQ-AGENT stays: ip-masq-agent (pid"},
		"a packetwalk-node's role": {
			runs: "role", stays: []string{another, masq, proxy, kubenet, table}, says: "delete its DaemonSet first", failed: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newTestNamespace(t)
			run := func(command string, args ...string) string {
				t.Helper()
				var out []byte
				if err := ns.Do(func() (err error) { out, err = exec.Command(command, args...).CombinedOutput(); return err }); err != nil {
					t.Fatalf("%s %s: %v\n%s", command, strings.Join(args, " "), err, out)
				}
				return string(out)
			}
			for _, line := range []string{
				"-N KUBE-SERVICES", "-A KUBE-SERVICES -d 10.0.9.9 -j RETURN",
				"-N IP-MASQ-AGENT", "-A IP-MASQ-AGENT -j MASQUERADE", "-A POSTROUTING -j IP-MASQ-AGENT",
				"-A POSTROUTING -d " + another + " -j MASQUERADE",
			} {
				run("iptables-nft", append([]string{"-t", "nat"}, strings.Fields(line)...)...)
			}
			run("iptables-nft", "-t", "nat", "-A", "PREROUTING", "-m", "comment", "--comment", "kubernetes service portals", "-j", "KUBE-SERVICES")
			run("iptables-nft", "-t", "nat", "-A", "POSTROUTING", "!", "-d", "10.0.0.0/8", "-m", "comment", "--comment", kubenet, "-j", "MASQUERADE")
			run("nft", "add", "table", "ip", nftables.TableName)
			start := func(cmd *exec.Cmd) *exec.Cmd {
				t.Helper()
				cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				if err := ns.Do(cmd.Start); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
				return cmd
			}
			as := func(role string) *exec.Cmd {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), "PACKETWALK_TEST_ROLE="+role)
				return cmd
			}
			switch c.runs {
			case "":
			case "role":
				cmd := as("role")
				out, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				start(cmd)
				if line, err := bufio.NewReader(out).ReadString('\n'); line != "<nil>\n" {
					t.Fatal(line, err)
				}
			default:
				path := filepath.Join(t.TempDir(), c.runs)
				if err := os.WriteFile(path, program, 0o700); err != nil { //nolint:gosec // a program
					t.Fatal(err)
				}
				start(exec.Command(path, "3600"))
			}
			var out []byte
			removal := as("remove")
			err := ns.Do(func() (err error) { out, err = removal.CombinedOutput(); return err })
			if (err != nil) != c.failed || !strings.Contains(string(out), c.says) {
				t.Errorf("%v; it says\n%s; want %q", err, out, c.says)
			}
			left := run("iptables-nft-save", "-t", "nat") + run("nft", "list", "tables")
			for _, what := range []string{table, proxy, masq, kubenet, another} {
				stays := slices.Contains(c.stays, what)
				if strings.Contains(left, what) != stays {
					t.Errorf("%s is left: %v, want %v in\n%s", what, !stays, stays, left)
				}
			}
		})
	}
}
