package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const snatWorld = `apiVersion: v1
kind: Pod
metadata: {name: client, labels: {app: client}}
spec:
  containers: [{name: c, image: ubuntu, command: [sleep, "3600"]}]
---
apiVersion: v1
kind: Service
metadata: {name: outbound}
spec:
  type: LoadBalancer
  selector: {app: client}
  ports: [{port: 80}]
`

const (
	internetHost = "client"
	internetIP   = "198.51.100.10"
	plainIP      = "192.168.203.2"
	// flowPorts is how many ports flows go to in turn: a node has 1,024 flows to each of them at a time, also some that ended a moment ago.
	flowPorts   = 256
	firstPort   = 20000
	flowSeconds = 2
	openers     = 8
)

// benchSNAT measures how many TCP connections a second a pod opens to a host on the internet, through the node's masquerade and the
// fabric's outbound translation, and beside that over a veth pair between the very same two namespaces, in turns.
func benchSNAT(n int) (err error) {
	l, err := makeLab("snat", oneNode, snatWorld)
	defer l.end(&err)
	if err != nil {
		return err
	}
	if _, err := l.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s"); err != nil {
		return err
	}
	frontend, err := l.waitFrontend("outbound")
	if err != nil {
		return err
	}
	if err := l.pair(); err != nil {
		return err
	}
	stop, err := l.acceptFlows()
	if err != nil {
		return err
	}
	defer stop()
	return beside(n, "1/s",
		figure{"new flows, masquerade and the fabric's SNAT", func() (float64, error) { return l.openFlows(internetIP, frontend) }},
		figure{"new flows, namespace pair without translation", func() (float64, error) { return l.openFlows(plainIP, "192.168.203.1") }})
}

// figure is something to measure.
type figure struct {
	name    string
	measure func() (float64, error)
}

// beside measures one thing and its peer in turn, n times, and prints both with their ratio.
func beside(n int, unit string, one, peer figure) error {
	var t table
	for range n {
		through, err := one.measure()
		if err != nil {
			return err
		}
		plain, err := peer.measure()
		if err != nil {
			return err
		}
		t.add(one.name, unit, through)
		t.add(peer.name, unit, plain)
		t.add("ratio", "", through/plain)
	}
	t.print()
	return nil
}

func (l *lab) waitFrontend(service string) (string, error) {
	for range 100 {
		out, err := l.kubectl("get", "service", service, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err != nil || out != "" {
			return out, err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", fmt.Errorf("service %s has no front end", service)
}

// pair joins the pod's and the host's namespace directly.
func (l *lab) pair() error {
	pod, err := filepath.Glob(filepath.Join("/run/packetwalk", l.name, "netns/pods/*/default_client"))
	if err != nil || len(pod) != 1 {
		return fmt.Errorf("network namespace of the pod: found %v", pod)
	}
	host := filepath.Join("/run/packetwalk", l.name, "netns", internetHost)
	script := strings.NewReplacer("POD", pod[0], "HOST", host).Replace(`set -e
nsenter --net="POD" sh -ec "ip link add plain type veth peer name plain netns 'HOST'; ip addr add 192.168.203.1/24 dev plain; ip link set plain up"
nsenter --net="HOST" sh -ec "ip addr add 192.168.203.2/24 dev plain; ip link set plain up"
`)
	_, err = run(time.Minute, "", "sh", "-c", script)
	return err
}

// acceptFlows has the host accept what comes until stop is called.
func (l *lab) acceptFlows() (stop func(), err error) {
	cmd := exec.Command(filepath.Join(bin, "packetwalk"), "ssh", "--name", l.name, internetHost, "--", self(), "flows", "accept")
	return startTool(cmd)
}

// startTool starts this program as a tool that prints a line when it is ready, and ends with its standard input, or when stop is called.
func startTool(cmd *exec.Cmd) (stop func(), err error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() { in.Close(); _ = cmd.Wait() }
	if _, err := fmt.Fscanln(out, new(string)); err != nil {
		stop()
		return nil, fmt.Errorf("%s is not ready: %w", cmd, err)
	}
	return stop, nil
}

// openFlows gives the connections per second, and checks that the host sees them come from where they should.
func (l *lab) openFlows(to, from string) (float64, error) {
	out, err := l.ssh("pod/default/client", self(), "flows", "open", to)
	if err != nil {
		return 0, err
	}
	perSecond, seen, _ := strings.Cut(strings.TrimSpace(out), " ")
	if seen != from {
		return 0, fmt.Errorf("connections to %s come from %s, not from %s", to, seen, from)
	}
	return strconv.ParseFloat(perSecond, 64)
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

// flows is what this program does in the lab's namespaces: "accept", or "open ADDRESS".
func flows(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "accept":
		return accept()
	case len(args) == 2 && args[0] == "open":
		return open(args[1])
	}
	return errors.New("flows: want accept, or open ADDRESS")
}

// accept takes connections, tells each its address, and ends with its input.
func accept() error {
	for port := firstPort; port < firstPort+flowPorts; port++ {
		listener, err := net.Listen("tcp4", fmt.Sprint(":", port))
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
					_, _ = io.WriteString(c, host+"\n")
					_, _ = c.Read(make([]byte, 1)) // until the other side ends it
				}()
			}
		}()
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// open opens connections for some seconds and prints how many per second, and where the other side sees them come from. Each is ended by a
// reset when it is open: nothing is to wait for at either end.
func open(address string) error {
	var opened atomic.Int64
	var failed atomic.Pointer[error]
	var seen string
	var wg sync.WaitGroup
	begin := time.Now()
	for worker := range openers {
		wg.Go(func() {
			for i := worker; time.Since(begin) < flowSeconds*time.Second; i += openers {
				c, err := net.DialTimeout("tcp4", net.JoinHostPort(address, strconv.Itoa(firstPort+i%flowPorts)), 5*time.Second)
				if err != nil {
					failed.Store(&err)
					return
				}
				if i == 0 {
					_, _ = fmt.Fscanln(c, &seen)
				}
				opened.Add(1)
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}
		})
	}
	wg.Wait()
	seconds := time.Since(begin).Seconds()
	if err := failed.Load(); err != nil {
		return *err
	}
	fmt.Printf("%.0f %s\n", float64(opened.Load())/seconds, seen)
	return nil
}
