package vm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"packetwalk.dev/test/world"
)

// settings are what administrators, distributions and Docker change on a machine. Any of them would stop a lab whose hosts have it, or make
// a host of it forward.
var settings = map[string]string{
	"forwarding": "1", "rp_filter": "1", "arp_ignore": "8", "arp_announce": "2", "accept_redirects": "0", "log_martians": "1",
}

// firewall is a host's firewall, as ufw and firewalld write it: what is not allowed is dropped, also what is forwarded.
const firewall = `
table inet firewall {
	chain input { type filter hook input priority filter; policy drop
		iif lo accept
		ct state established,related accept
	}
	chain forward { type filter hook forward priority filter; policy drop
	}
	chain output { type filter hook output priority filter; policy accept
	}
}
`

// TestHostSettings: settings and a firewall of the machine have no effect in a lab, and stay as they are.
func TestHostSettings(t *testing.T) {
	needVM(t)
	if withoutBridges() {
		t.Skip("the world has a bridge")
	}
	l := &lab{World: world.New(t, "vm-settings"), namespace: "default"}
	defer l.printLogs(t)
	for name, value := range settings {
		files, _ := filepath.Glob("/proc/sys/net/ipv4/conf/*/" + name) // the pattern is well formed
		for _, file := range files {
			if err := os.WriteFile(file, []byte(value), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	nft := exec.Command("nft", "-f", "-")
	nft.Stdin = strings.NewReader(firewall)
	if out, err := nft.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := machineState(t)
	l.run(t, upLimit, l.upCommand("azure-cni")...)
	l.deploy(t, "azure-cni", []string{"whereami.yaml"})
	l.request(t)
	l.walk(t)
	for _, host := range []string{"client", "testvm", "pod/" + l.namespace + "/" + l.pods[0].Name} {
		got := l.run(t, commandLimit, "ssh", "--name", l.Name, host, "--", "sysctl", "-n", "net.ipv4.conf.all.forwarding", "net.ipv4.conf.eth0.rp_filter",
			"net.ipv4.conf.eth0.arp_ignore", "net.ipv4.conf.lo.arp_announce", "net.ipv4.conf.all.accept_redirects")
		if want := "0 0 0 0 1"; strings.Join(strings.Fields(got), " ") != want {
			t.Errorf("%s has the settings %q, want %q", host, got, want)
		}
	}
	l.down(t)
	expectSame(t, before, machineState(t))
}
