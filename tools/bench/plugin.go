package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/testing/localimage"
)

// realNodes is how many nodes with containerd the walks of plugin have.
const realNodes = 5

// benchPlugin measures kubectl packetwalk, from typing to the answer: walks on nodes with containerd that have its image, and captures of
// all simulated nodes of a larger cluster.
func benchPlugin(n int) error {
	var t table
	defer func() { t.print() }()
	err := withPlugin("walks", realNodes, "containerd", 2*realNodes, func(p *pluginRun) error {
		pods, err := p.list("pods")
		if err != nil {
			return err
		}
		from := pods[0]
		for _, to := range pods {
			if to.Spec.NodeName == from.Spec.NodeName {
				continue
			}
			walks := []struct {
				name string
				args []string
			}{
				{"walk from a pod to the internet", []string{"walk", "--from", "pod/" + from.Metadata.Name, "--to", "198.51.100.80:80"}},
				{"walk --live to a pod on another node", []string{"walk", "--live", "--from", "pod/" + from.Metadata.Name, "--to",
					"pod/" + to.Metadata.Name + ":80"}},
			}
			for range n + 1 { // the first one makes what pods share on a node
				for _, w := range walks {
					if err := p.measure(&t, fmt.Sprintf("%d containerd nodes: %s", realNodes, w.name), w.args...); err != nil {
						return err
					}
				}
			}
			return nil
		}
		return fmt.Errorf("all pods are on one node")
	})
	if err != nil {
		return err
	}
	return withPlugin("captures", nodes.count, "simulated", nodes.pods, func(p *pluginRun) error {
		file := filepath.Join(p.dir, "capture")
		for range n {
			name := fmt.Sprintf("%d simulated nodes, %d pods: capture", nodes.count, nodes.pods)
			if err := p.measure(&t, name, "capture", "--all-nodes", "-o", file); err != nil {
				return err
			}
			info, err := os.Stat(file)
			if err != nil {
				return err
			}
			t.add(name+"'s file", "MB", float64(info.Size())/1e6)
			if err := os.Remove(file); err != nil {
				return err
			}
		}
		return nil
	})
}

// pluginRun is a lab with the plugin's image, and what the plugin is run with.
type pluginRun struct {
	*lab
	dir, kubeconfig, image string
}

// withPlugin does something with a lab of its own.
func withPlugin(what string, count int, runtime string, pods int, do func(*pluginRun) error) (err error) {
	dir, err := os.MkdirTemp("", "bench-plugin-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l := newLab("plugin-" + what)
	before := nodes.runtime
	nodes.runtime = runtime
	cluster := ofRuntime(count, max(40, 2*pods/count)) + wideSubnet + "  images: {pull: never}\n"
	nodes.runtime = before
	defer l.end(&err)
	if _, err := l.up(cluster); err != nil {
		return err
	}
	if err := l.apply(whereami(pods)); err != nil {
		return err
	}
	ready := fmt.Sprintf("--for=jsonpath={.status.readyReplicas}=%d", pods)
	if _, err := l.kubectl("wait", "deployment/whereami", ready, "--timeout=270s"); err != nil {
		return err
	}
	config, err := l.kubectl("config", "view", "--raw")
	if err != nil {
		return err
	}
	p := &pluginRun{lab: l, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig")}
	if err := os.WriteFile(p.kubeconfig, []byte(config), 0o600); err != nil {
		return err
	}
	remove, err := p.makeImage()
	if err != nil {
		return err
	}
	defer remove()
	return do(p)
}

// makeImage puts the plugin's into the machine's store, and gives what takes it out again.
func (p *pluginRun) makeImage() (remove func(), err error) {
	said, err := p.packetwalk("--version")
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(said)
	version := fields[len(fields)-1]
	if err := localimage.Make(context.Background(), filepath.Join(bin, "packetwalk"), version); err != nil {
		return nil, err
	}
	p.image = imageref.Image(version)
	return func() { _, _ = p.packetwalk("image", "rm", p.image) }, nil
}

// measure runs the plugin and adds the time and the memory that it took.
func (p *pluginRun) measure(t *table, what string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "kubectl-packetwalk"), args...)
	cmd.Env = []string{"KUBECONFIG=" + p.kubeconfig, "HOME=" + p.dir, "PATH=" + os.Getenv("PATH"), "PACKETWALK_IMAGE=" + p.image}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return err
	}
	over, most := make(chan struct{}), make(chan float64)
	go func() { most <- mostResident(cmd.Process.Pid, over) }()
	err := cmd.Wait()
	took := time.Since(begin)
	close(over)
	resident := <-most
	if err != nil {
		return fmt.Errorf("kubectl packetwalk %s: %w\n%s", strings.Join(args, " "), err, indent(out.String()))
	}
	t.add(what, "s", took.Seconds())
	t.add(what+": resident", "MB", resident)
	return nil
}

// mostResident reads what a process has had in memory at most, until it is over, in MB (proc_pid_status(5), VmHWM). What wait4 tells is
// that of this process where it was larger, which is one until it has become the other.
func mostResident(pid int, over <-chan struct{}) (mb float64) {
	for {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if _, after, ok := strings.Cut(string(text), "VmHWM:"); ok && strings.Contains(string(text), "Name:\tkubectl") {
			kb, _ := strconv.ParseFloat(strings.Fields(after)[0], 64)
			mb = max(mb, kb/1024)
		}
		select {
		case <-over:
			return mb
		case <-time.After(10 * time.Millisecond):
		}
	}
}
