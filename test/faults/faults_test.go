package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

func TestMain(m *testing.M) { os.Exit(world.Main(m)) }

const node = "aks-nodepool1-31351229-0"

// fresh brings up a lab for one test, which takes it down at the end and looks for what is left of it.
func fresh(t *testing.T, name string) *world.World {
	t.Helper()
	return freshOf(t, name, "azure-cni")
}

// freshOf does what fresh does with an example's world.
func freshOf(t *testing.T, name, example string) *world.World {
	t.Helper()
	return freshFrom(t, name, filepath.Join("..", "..", "examples", example, "cluster.yaml"))
}

// freshFrom does what fresh does with a cluster.yaml.
func freshFrom(t *testing.T, name, file string) *world.World {
	t.Helper()
	w := world.Own(t, fmt.Sprintf("%s-%d", name, os.Getpid()))
	before := hostState(t)
	var trace footprint
	t.Cleanup(func() {
		trace = footprintOf(t, w)
		if _, err := w.Try(3*time.Minute, "down", "--name", w.Name); err != nil {
			t.Error(err)
		}
		trace.expectGone(t, w)
		expectSame(t, before, hostState(t))
	})
	if _, err := w.Try(3*time.Minute, "up", "--name", w.Name, "-f", file); err != nil {
		t.Fatal(err)
	}
	return w
}

// deploy rolls whereami out and waits for the internet's first answer.
func deploy(t *testing.T, w *world.World) (vip string) {
	t.Helper()
	w.Kubectl(t, "apply", "-f", w.Example("azure-cni", "whereami.yaml"))
	eventually.Succeeds(t, time.Minute, func() error {
		vip = w.Kubectl(t, "get", "service", "whereami", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		if vip == "" {
			return errors.New("no front end")
		}
		return request(w, vip)
	})
	return vip
}

func request(w *world.World, vip string) error {
	_, err := w.Try(30*time.Second, "ssh", "--name", w.Name, "client", "--", "curl", "-sS", "--max-time", "10", "http://"+vip)
	return err
}

func status(t *testing.T, w *world.World) lab.Status {
	t.Helper()
	out, err := w.Try(time.Minute, "status", "--name", w.Name, "-o", "json")
	var s lab.Status
	if e := json.Unmarshal([]byte(out), &s); e != nil {
		t.Fatalf("status: %v, %v", err, e)
	}
	if (err != nil) != (len(s.Problems) > 0) {
		t.Errorf("status ends with %v but has problems %q", err, s.Problems)
	}
	return s
}

func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("no process to kill: %d", pid)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func well(t *testing.T, w *world.World) {
	t.Helper()
	eventually.Succeeds(t, 3*time.Minute, func() error {
		if s := status(t, w); len(s.Problems) > 0 || !s.Ready {
			return fmt.Errorf("problems: %q", s.Problems)
		}
		return nil
	})
}

func TestKillLabProcess(t *testing.T) {
	t.Parallel()
	w := fresh(t, "kill-lab")
	vip := deploy(t, w)
	c := open(t, w, "client", vip)
	before := w.Kubectl(t, "get", "pods", "-o", "name")
	kill(t, status(t, w).Pid)
	eventually.Succeeds(t, time.Minute, func() error {
		if s := status(t, w); s.Pid != 0 || len(s.Problems) == 0 || !strings.Contains(s.Problems[0], "lab process") {
			return fmt.Errorf("status says %+v", s)
		}
		return nil
	})
	for range 5 {
		if err := request(w, vip); err != nil {
			t.Errorf("new connections fail without the lab process: %v", err)
		}
	}
	w.Run(t, "up", "--name", w.Name, "-f", w.Example("azure-cni", "cluster.yaml"))
	well(t, w)
	c.ask(t, "after the restart")
	if after := w.Kubectl(t, "get", "pods", "-o", "name", "--field-selector=status.phase=Running"); after != before {
		t.Errorf("pods were %s and are %s", before, after)
	}
	if restarts := strings.Fields(w.Kubectl(t, "get", "pods", "-o",
		"jsonpath={.items[*].status.containerStatuses[*].restartCount}")); strings.Join(restarts, "") != "00" {
		t.Errorf("containers were restarted: %v", restarts)
	}
	w.Kubectl(t, "scale", "deployment/whereami", "--replicas=3")
	w.Kubectl(t, "rollout", "status", "deployment/whereami", "--timeout=60s")
}

func TestKillParts(t *testing.T) {
	t.Parallel()
	w := fresh(t, "kill-parts")
	vip := deploy(t, w)

	t.Run("agent", func(t *testing.T) {
		c := open(t, w, "client", vip)
		kill(t, status(t, w).Nodes[0].Agent.Pid)
		eventually.Succeeds(t, time.Minute, func() error {
			if s := status(t, w); s.Nodes[0].Agent.Pid == 0 && len(s.Problems) > 0 || s.Nodes[0].Agent.Restarts > 0 {
				return nil
			}
			return errors.New("status does not tell")
		})
		if err := request(w, vip); err != nil {
			t.Errorf("new connections fail without the agent: %v", err)
		}
		well(t, w)
		c.ask(t, "after the restart")
	})
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		t.Run(name, func(t *testing.T) {
			c := open(t, w, "client", vip)
			for _, component := range status(t, w).Components {
				if component.Name == name {
					kill(t, component.Pid)
				}
			}
			if err := request(w, vip); err != nil {
				t.Errorf("new connections fail without %s: %v", name, err)
			}
			well(t, w)
			tries := 0 // one that is not answered in time may have made its object
			eventually.Succeeds(t, time.Minute, func() error {
				tries++
				_, err := w.Try(10*time.Second, "kubectl", "--name", w.Name, "create", "configmap", fmt.Sprintf("after-%s-%d", name, tries))
				return err
			})
			c.ask(t, "after the restart")
		})
	}
	t.Run("internet host's app", func(t *testing.T) {
		find := func() lab.Host {
			for _, h := range status(t, w).Hosts {
				if h.App == "ifconfig.co" {
					return h
				}
			}
			t.Fatal("no host runs ifconfig.co")
			return lab.Host{}
		}
		first := find().Pid
		kill(t, first)
		eventually.Succeeds(t, time.Minute, func() error {
			if pid := find().Pid; pid == 0 || pid == first {
				return fmt.Errorf("pid %d", pid)
			}
			out, err := w.Try(20*time.Second, "ssh", "--name", w.Name, "testvm", "--", "curl", "-sS", "--max-time", "3", "http://198.51.100.80")
			if err == nil && out != "203.0.113.3\n" {
				err = fmt.Errorf("ifconfig.co says %q", out)
			}
			return err // it has a process before it listens
		})
	})
	t.Run("app", func(t *testing.T) {
		out := w.Kubectl(t, "get", "pods", "-l", "app=whereami", "-o", "jsonpath={.items[0].metadata.name}")
		at, err := lab.DirOf(w.Name).FindHost("pod/default/" + out)
		if err != nil {
			t.Fatal(err)
		}
		ns, err := netns.Open(at.NetNS)
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		pids, err := netns.Processes(ns.Inode())
		if err != nil || len(pids) == 0 {
			t.Fatal(pids, err)
		}
		kill(t, pids[0])
		eventually.Succeeds(t, time.Minute, func() error {
			state := w.Kubectl(t, "get", "pod", out, "-o",
				"jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}")
			if state != "1 true" {
				return errors.New(state)
			}
			return nil
		})
		expectHealthy(t, w, 1) // a probe may have come to the dead endpoint
		if err := request(w, vip); err != nil {
			t.Error(err)
		}
	})
}

// A dead node is taken out of the load balancer and comes back.
func TestDeadNode(t *testing.T) {
	t.Parallel()
	w := world.Own(t, fmt.Sprintf("dead-node-%d", os.Getpid()))
	t.Cleanup(func() {
		f := footprintOf(t, w)
		w.Run(t, "down", "--name", w.Name)
		f.expectGone(t, w)
	})
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: packetwalk.dev/v1alpha1\nkind: Cluster\nspec: {nodePools: [{name: nodepool1, count: 2}]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Run(t, "up", "--name", w.Name, "-f", file)
	vip := deploy(t, w)
	healthy := func(n int) func() error {
		return func() error {
			if s := status(t, w); len(s.Frontends) != 1 || len(s.Frontends[0].Healthy) != n {
				return fmt.Errorf("front ends: %+v", s.Frontends)
			}
			return nil
		}
	}
	eventually.Succeeds(t, time.Minute, healthy(2))
	w.SSH(t, node, "ip", "link", "set", "eth0", "down")
	// The other node sends probes to pods of the dead one, too, until its pods are no end points any more: node-monitor-grace-period, 50 s.
	eventually.Succeeds(t, 3*time.Minute, healthy(1))
	w.SSH(t, node, "ip", "link", "set", "eth0", "up")
	w.SSH(t, node, "ip", "route", "replace", "default", "via", "10.224.0.1")
	w.Kubectl(t, "wait", "--for=condition=Ready", "pod", "-l", "app=whereami", "--timeout=60s")
	eventually.Succeeds(t, time.Minute, healthy(2))
	for range 10 {
		if err := request(w, vip); err != nil {
			t.Error(err)
		}
	}
}

func TestInterruptedUp(t *testing.T) {
	for _, after := range []time.Duration{30 * time.Millisecond, 300 * time.Millisecond, 1200 * time.Millisecond, 2500 * time.Millisecond} {
		w := world.New(t, fmt.Sprintf("ctrl-c-%d", os.Getpid()))
		before := hostState(t)
		cmd := exec.Command(filepath.Join(w.Root, "bin", "packetwalk"), "up", "--name", w.Name)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(after)
		f := footprintOf(t, w)
		_ = cmd.Process.Signal(os.Interrupt)
		err := cmd.Wait()
		code := cmd.ProcessState.ExitCode()
		if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signaled() && s.Signal() == syscall.SIGINT {
			code = 130 // as the shell says; a busy machine has not come to main yet
		}
		if code != 130 {
			t.Errorf("interrupted after %v: exit status %d (%v): %s", after, code, err, &errs)
		}
		if want := fmt.Sprintf("packetwalk: interrupted\npacketwalk: nothing of lab %q is left\n", w.Name); code == 130 && errs.Len() > 0 && errs.String() != want {
			t.Errorf("interrupted after %v: got %s, want %s", after, &errs, want)
		}
		f.expectGone(t, w)
		expectSame(t, before, hostState(t))
	}
}

// Of several commands at once for one lab, one brings it up and the others find it; a down in the middle leaves nothing.
func TestUpAtOnce(t *testing.T) {
	t.Parallel()
	w := world.Own(t, fmt.Sprintf("at-once-%d", os.Getpid()))
	t.Cleanup(func() {
		f := footprintOf(t, w)
		w.Run(t, "down", "--name", w.Name)
		f.expectGone(t, w)
	})
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() {
			_, err := w.Try(3*time.Minute, "up", "--name", w.Name)
			ended <- err
		}()
	}
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	well(t, w)
	w.Run(t, "down", "--name", w.Name)

	go func() {
		_, err := w.Try(3*time.Minute, "up", "--name", w.Name)
		ended <- err
	}()
	eventually.Succeeds(t, time.Minute, func() error { // until up is in the middle
		_, err := os.Stat(lab.DirOf(w.Name).NetNS("controlplane"))
		return err
	})
	f := footprintOf(t, w)
	w.Run(t, "down", "--name", w.Name)
	if err := <-ended; err == nil {
		t.Error("up says that the lab is ready, but down has removed it")
	}
	f.expectGone(t, w)
	w.Run(t, "up", "--name", w.Name)
	well(t, w)
}

// A down that follows a kill of everything at once leaves nothing.
func TestDownAfterKillAll(t *testing.T) {
	t.Parallel()
	w := fresh(t, "kill-all")
	deploy(t, w)
	s := status(t, w)
	kill(t, s.Pid)
	for _, c := range s.Components {
		kill(t, c.Pid)
	}
	kill(t, s.Nodes[0].Agent.Pid)
	eventually.Succeeds(t, time.Minute, func() error {
		told := strings.Join(status(t, w).Problems, "\n")
		for _, dead := range []string{"lab process", "etcd", "kube-apiserver", node} {
			if !strings.Contains(told, dead) {
				return fmt.Errorf("status does not tell of %s: %s", dead, told)
			}
		}
		return nil
	})
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	w := world.New(t, fmt.Sprintf("bad-input-%d", os.Getpid()))
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(file, []byte(`apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
spec:
  network: {plugin: cilium, serviceCIDR: 10.0.0.1/16}
  nodePool: []
  nodePools: [{name: nodepool1, count: 20}]
  azure:
    vnets:
    - {name: aksVnet, addressPrefixes: [10.13.0.0/16], subnets: [{name: aks, prefix: 10.13.76.0/24}, {name: other, prefix: 10.13.76.128/25}]}
    vms: [{name: db, subnet: aksVnet/aks, app: oracle}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(w.Root, "bin", "packetwalk"), "up", "--name", w.Name, "-f", file)
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 2 {
		t.Errorf("exit status %d, want 2", code)
	}
	for _, field := range []string{"spec.network.plugin", "spec.network.serviceCIDR", "spec.nodePool", "spec.nodePools[0]", "subnets[1]",
		"spec.azure.vms[0].app"} {
		if !strings.Contains(string(out), field) {
			t.Errorf("no error about %s in:\n%s", field, out)
		}
	}
	if lab.DirOf(w.Name).Exists() {
		t.Error("something was created")
	}
}

// Without root there is one clear line that says so.
func TestWithoutRoot(t *testing.T) {
	t.Parallel()
	w := world.New(t, "no-root")
	cmd := exec.Command("setpriv", "--reuid=65534", "--clear-groups", "--", "/proc/self/fd/3", "up", "--name", w.Name)
	program, err := os.Open(filepath.Join(w.Root, "bin", "packetwalk"))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	cmd.ExtraFiles = []*os.File{program}
	out, _ := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != 1 || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "sudo") {
		t.Errorf("exit status %d: %s", code, out)
	}
}
