package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const iperfPods = `apiVersion: v1
kind: Pod
metadata: {name: server}
spec:
  nodeName: aks-nodepool1-31351229-0
  containers: [{name: c, image: ubuntu, command: [sleep, "3600"]}]
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  nodeName: aks-nodepool1-31351229-1
  containers: [{name: c, image: ubuntu, command: [sleep, "3600"]}]
`

// benchThroughput measures iperf3 between two pods on two nodes: by the lab's network, and by one more namespace that does nothing but
// forward between the very same two, in turns.
func benchThroughput(n int) (err error) {
	l, err := makeLab("throughput", oneNode+"spec: {nodePools: [{name: nodepool1, count: 2}]}\n", iperfPods)
	defer l.end(&err)
	if err != nil {
		return err
	}
	if _, err := l.kubectl("wait", "--for=condition=Ready", "pod/server", "pod/client", "--timeout=60s"); err != nil {
		return err
	}
	pods, err := l.list("pods")
	if err != nil {
		return err
	}
	ips := map[string]string{}
	for _, p := range pods {
		ips[p.Metadata.Name] = p.Status.PodIP
	}
	if err := l.joinPlainly(); err != nil {
		return err
	}
	defer l.unjoin()
	// The machine's own congestion control is the figure. Cubic, Debian's and Ubuntu's, is measured beside it where it is another one,
	// because what paces itself by delay, as BBR does, is slowed by each hop's delay and not by its cost.
	controls := []string{congestionControl()}
	if controls[0] != "cubic" {
		controls = append(controls, "cubic")
	}
	var t table
	for range n {
		for _, control := range controls {
			if err := l.compare(&t, control, ips["server"]); err != nil {
				return err
			}
		}
	}
	t.print()
	return nil
}

// congestionControl is the machine's (tcp(7)), which new namespaces take over.
func congestionControl() string {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	if err != nil {
		return "cubic"
	}
	return strings.TrimSpace(string(text))
}

// compare measures both ways in turn.
func (l *lab) compare(t *table, control, server string) error {
	through, err := l.iperf(server, control)
	if err != nil {
		return err
	}
	plain, err := l.iperf("192.168.201.2", control)
	if err != nil {
		return err
	}
	t.add(control+": through the lab's network", "Gbit/s", through)
	t.add(control+": through a plain forwarding namespace", "Gbit/s", plain)
	t.add(control+": ratio (target 0.80)", "", through/plain)
	return nil
}

// joinPlainly makes a forwarding namespace between the two pods' namespaces.
func (l *lab) joinPlainly() error {
	server, client, err := l.podSpaces()
	if err != nil {
		return err
	}
	script := strings.NewReplacer("MID", l.name, "SERVER", server, "CLIENT", client).Replace(`set -e
ip netns add MID
ip -n MID link set lo up
ip -n MID link add ps type veth peer name plain netns "SERVER"
ip -n MID link add pc type veth peer name plain netns "CLIENT"
ip -n MID addr add 192.168.201.1/24 dev ps
ip -n MID addr add 192.168.202.1/24 dev pc
ip -n MID link set ps up
ip -n MID link set pc up
ip netns exec MID sysctl -qw net.ipv4.ip_forward=1
nsenter --net="SERVER" sh -ec "ip addr add 192.168.201.2/24 dev plain; ip link set plain up; ip route add 192.168.202.0/24 via 192.168.201.1"
nsenter --net="CLIENT" sh -ec "ip addr add 192.168.202.2/24 dev plain; ip link set plain up; ip route add 192.168.201.0/24 via 192.168.202.1"
`)
	_, err = run(time.Minute, "", "sh", "-c", script)
	return err
}

func (l *lab) unjoin() { _ = exec.Command("ip", "netns", "del", l.name).Run() }

func (l *lab) podSpaces() (server, client string, err error) {
	find := func(pod string) (string, error) {
		found, err := filepath.Glob(filepath.Join("/run/packetwalk", l.name, "netns/pods/*/default_"+pod))
		if err != nil || len(found) != 1 {
			return "", fmt.Errorf("network namespace of pod %s: found %v", pod, found)
		}
		return found[0], nil
	}
	if server, err = find("server"); err != nil {
		return "", "", err
	}
	client, err = find("client")
	return server, client, err
}

// iperf runs one server and one client for 2 s and gives what arrived, in Gbit/s.
func (l *lab) iperf(server, control string) (float64, error) {
	if _, err := l.ssh("pod/default/server", "iperf3", "-s", "-1", "-D"); err != nil {
		return 0, err
	}
	time.Sleep(200 * time.Millisecond)
	out, err := l.ssh("pod/default/client", "iperf3", "-J", "-t", "2", "-C", control, "-c", server)
	if err != nil {
		return 0, err
	}
	var report struct {
		End struct {
			SumReceived struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return 0, err
	}
	return report.End.SumReceived.BitsPerSecond / 1e9, nil
}
