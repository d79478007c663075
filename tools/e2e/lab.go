package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"packetwalk.dev/internal/base/termsafe"
)

// networks are the pods' networks: what it is called, and its part of cluster.yaml.
var networks = map[string]struct{ title, spec string }{
	"overlay":     {"Azure CNI Overlay", "{plugin: azure, mode: overlay}"},
	"bridge":      {"Azure CNI, mode bridge", "{plugin: azure, mode: bridge}"},
	"transparent": {"Azure CNI, mode transparent", "{plugin: azure, mode: transparent}"},
	"kubenet":     {"kubenet", "{plugin: kubenet}"},
	"calico":      {"Azure CNI with Calico's policies", "{plugin: azure, policy: calico}"},
}

// A lab is driven by the command line.
type lab struct{ name, log string }

// maxPods is how many pods a node runs: AKS's number for kubenet, and enough for the specs that run at the same time.
const maxPods = 110

func clusterYAML(o options) string {
	return fmt.Sprintf(`apiVersion: packetwalk.dev/v1alpha1
kind: Cluster
metadata: {name: e2e}
spec:
  network: %s
  nodePools: [{name: nodepool1, count: %d, maxPods: %d, vnetSubnet: e2e/nodes, availabilityZones: ["1", "2", "3"]}]
  azure:
    vnets:
    - name: e2e
      addressPrefixes: [10.240.0.0/16]
      subnets: [{name: nodes, prefix: 10.240.0.0/18}]
`, networks[o.network].spec, o.nodes, maxPods)
}

// up makes the lab and what the suite reaches it with, kubectl and kubeconfig in bin/e2e/report.
func (l lab) up(ctx context.Context, o options) error {
	if networks[o.network].spec == "" {
		return fmt.Errorf("unknown network %q: it is overlay, bridge, transparent, kubenet or calico", o.network)
	}
	file := filepath.Join(report, "cluster.yaml")
	if err := os.WriteFile(file, []byte(clusterYAML(o)), 0o644); err != nil {
		return err
	}
	if _, err := l.packetwalk(ctx, "up", "--name", l.name, "-f", file); err != nil {
		return err
	}
	if err := os.Symlink("../../packetwalk-controlplane", filepath.Join(report, "kubectl")); err != nil {
		return err
	}
	config, err := l.packetwalk(ctx, "kubectl", "--name", l.name, "config", "view", "--raw")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(report, "kubeconfig"), []byte(config), 0o600)
}

func (l lab) down(ctx context.Context) error {
	_, err := l.packetwalk(ctx, "down", "--name", l.name)
	return errors.Join(err, os.RemoveAll(filepath.Join(report, "kubeconfig")))
}

// packetwalk runs the command, which gets an interrupt when ctx ends.
func (l lab) packetwalk(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "packetwalk"), args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	interruptGroup(cmd, time.Minute)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("packetwalk %s: %w\n%s", strings.Join(args, " "), err, errs.String())
	}
	return out.String(), nil
}

// interruptGroup lets the command's processes be a group, which the terminal's Ctrl-C does not reach, and which gets one when the command's
// context ends, and is killed when that does not end it in the given time.
func interruptGroup(cmd *exec.Cmd, patience time.Duration) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		time.AfterFunc(patience, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)
	}
	cmd.WaitDelay = patience + 5*time.Second
}

// grace is how long the suite's processes may clean up after the time is over or after Ctrl-C.
const grace = 2 * time.Minute

// suite runs the specs by ginkgo's runner, in several processes on the lab's internet host, and says on w how each ended. That specs failed
// is no error.
func (l lab) suite(ctx context.Context, o options, w io.Writer) error {
	folder, err := filepath.Abs(filepath.Join(bin, "e2e"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.limit+grace)
	defer cancel()
	kubeconfig := filepath.Join(folder, "report/kubeconfig")
	if err := l.relayAPI(ctx, kubeconfig); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--net="+l.clientSpace(),
		filepath.Join(folder, "ginkgo"), "-v", "-no-color", fmt.Sprintf("-procs=%d", o.procs), "-timeout="+o.limit.String(), "-grace-period=30s", "-focus="+o.focus, "-skip="+o.skip, filepath.Join(folder, "e2e.test"), "--",
		"-provider=skeleton", "-kubeconfig="+kubeconfig, "-kubectl-path="+filepath.Join(folder, "report/kubectl"),
		// The dump after a failure asks kubelets for their metrics, for two minutes where they have none.
		fmt.Sprintf("-num-nodes=%d", o.nodes), "-allowed-not-ready-nodes=0", "-dump-logs-on-failure=false",
		"-report-dir="+filepath.Join(folder, "report"),
		"-e2e-output-dir="+filepath.Join(folder, "report"))
	interruptGroup(cmd, grace)
	file, err := os.Create(l.log)
	if err != nil {
		return err
	}
	defer file.Close()
	out, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	followed := make(chan error, 1)
	go func() {
		err := follow(io.TeeReader(out, file), w)
		out.CloseWithError(err) // who writes does not wait for a reader that has gone
		followed <- err
	}()
	err = cmd.Run()
	writer.Close()
	err = errors.Join(<-followed, err)
	if failed := new(exec.ExitError); errors.As(err, &failed) && failed.ExitCode() > 0 { // the results say why
		err = nil
	}
	return err
}

var (
	ended = regexp.MustCompile(`^[•S] (?:\[([A-Z!]+)\] )?\[([0-9.]+) seconds\]$`)
	// What ginkgo puts into names: the part of the spec that failed, and at the end its labels.
	added = regexp.MustCompile(` \[(?:It|BeforeEach|JustBeforeEach|AfterEach|JustAfterEach|DeferCleanup[^\]]*)\]| \[[^\[\]]*\]$`)
)

// follow reads what ginkgo prints of each spec that has ended ("• [FAILED] [1.234 seconds]", then its name, then its log), and writes a
// line for each.
func follow(r io.Reader, w io.Writer) error {
	var header []string
	lines := bufio.NewReader(r)
	for {
		line, isPrefix, err := lines.ReadLine()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what the suite says: %w", err)
		}
		if header != nil {
			state := strings.ToLower(strings.Trim(header[1], "!"))
			if state == "" {
				state = "passed"
			}
			fmt.Fprintf(w, "%-11s %7s s  %s\n", state, header[2], termsafe.Text(added.ReplaceAllString(string(line), "")))
		}
		header = ended.FindStringSubmatch(string(line))
		for isPrefix && err == nil {
			_, isPrefix, err = lines.ReadLine()
		}
	}
}
