package tours

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/base/procstat"
	"packetwalk.dev/internal/testing/eventually"
	"packetwalk.dev/test/world"
)

// TestShellPrompt: the prompt shows the lab's name; Ctrl-C ends what runs and not the shell; its end leaves no folder and the terminal as
// it was.
func TestShellPrompt(t *testing.T) {
	w := world.New(t, "tours-shell")
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	p := onTerminal(t, w, "shell", "--name", w.Name)
	p.await(`lab "tours-shell" is not up: 'packetwalk up' in here makes it`)
	p.await("(tours-shell)")
	p.write("sleep 1000\n")
	p.await("sleep 1000\r\n")
	eventually.Succeeds(t, time.Minute, func() error {
		if len(p.children("sleep")) == 0 {
			return errors.New("sleep has not begun")
		}
		return nil
	})
	p.write("\x03")
	p.await("(tours-shell)")
	p.write("echo still $PACKETWALK_LAB; exit 3\n")
	p.await("still tours-shell\r\n")
	if status := p.end(); status != 3 {
		t.Errorf("exit status %d:\n%s", status, p.screen())
	}
	p.unchanged()
	if left, _ := filepath.Glob(filepath.Join(tmp, "*")); left != nil {
		t.Errorf("left behind: %v", left)
	}
}

// children returns the processes of that name in the terminal's session.
func (p *pty) children(name string) []string {
	var found []string
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		stat, err := procstat.Read(dir)
		if err == nil && string(comm) == name+"\n" && stat.Session == p.cmd.Process.Pid {
			found = append(found, dir)
		}
	}
	return found
}

// TestShell: on a lab that runs, commands work as the articles type them.
func TestShell(t *testing.T) {
	w := world.Up(t, "azure-cni")
	const node = "aks-nodepool1-31351229-0"
	for line, want := range map[string]string{
		"kubectl get nodes -o name":                          "node/" + node,
		"k get svc kubernetes -o jsonpath={.spec.clusterIP}": "10.0.0.1",
		"noderg=$(az aks show -g akstest -n aksPacketWalkAzure --query nodeResourceGroup -o tsv); az network lb list -g $noderg --query '[0].name' -o tsv": "kubernetes",
		"ssh " + node + " hostname": node,
		"ssh -J 203.0.113.9 jose@10.13.76.4 'sudo iptables-save | grep -c -- \"-j KUBE-MARK-MASQ\" | sed s/[0-9]*/some/'": "some",
		"ssh 10.13.1.4 hostname": "testvm",
		"ssh client hostname":    "client",
		`packetwalk status | head -1 | grep -o "` + "$PACKETWALK_LAB" + `"`: w.Name,
	} {
		if got := w.Run(t, "shell", "--name", w.Name, "-c", line); strings.TrimSpace(got) != want {
			t.Errorf("%s\n%s\nwant %s", line, got, want)
		}
	}
	if out, err := w.Try(time.Minute, "shell", "--name", w.Name, "--", "ssh", "10.13.99.99", "true"); err == nil ||
		!strings.Contains(err.Error(), "has the address 10.13.99.99") {
		t.Errorf("%s%v", out, err)
	}
}
