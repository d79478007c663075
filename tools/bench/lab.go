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

	"packetwalk.dev/internal/base/procstat"
)

// bin is where `make build` puts the programs.
var bin = "bin"

// A lab is driven by the command line.
type lab struct{ name string }

func newLab(what string) *lab { return &lab{fmt.Sprintf("bench-%s-%d", what, os.Getpid())} }

func run(limit time.Duration, stdin string, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, indent(string(out)),
			indent(errs.String()))
	}
	return string(out), nil
}

func (l *lab) packetwalk(args ...string) (string, error) {
	return run(5*time.Minute, "", filepath.Join(bin, "packetwalk"), args...)
}

func (l *lab) up(clusterYAML string) (string, error) {
	f, err := os.CreateTemp("", "cluster-*.yaml")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	if _, err := f.WriteString(clusterYAML); err != nil {
		return "", err
	}
	f.Close()
	return l.packetwalk("up", "--name", l.name, "-f", f.Name())
}

func (l *lab) down() error {
	_, err := l.packetwalk("down", "--name", l.name)
	return err
}

func (l *lab) apply(manifest string) error {
	_, err := run(time.Minute, manifest, filepath.Join(bin, "packetwalk"), "kubectl", "--name", l.name, "apply", "-f", "-")
	return err
}

func (l *lab) kubectl(args ...string) (string, error) {
	return l.packetwalk(append([]string{"kubectl", "--name", l.name}, args...)...)
}

func (l *lab) ssh(host string, command ...string) (string, error) {
	return l.packetwalk(append([]string{"ssh", "--name", l.name, host, "--"}, command...)...)
}

// An object has the fields that the benchmarks read.
type object struct {
	Metadata struct {
		Name string
	}
	Spec struct {
		NodeName string
	}
	Status struct {
		Conditions []struct {
			Type, Status string
		}
		LoadBalancer struct{ Ingress []struct{ IP string } }
	}
}

func (o object) is(condition string) bool {
	for _, c := range o.Status.Conditions {
		if c.Type == condition {
			return c.Status == "True"
		}
	}
	return false
}

// A process is what the memory and the processor time of a lab are counted by.
type process struct {
	name string
	rss  float64 // MB
	pss  float64 // MB, shared pages counted in parts
	cpu  float64 // seconds, of its own and of the children that it has waited for
}

// processes returns the processes of the lab: the lab process, and everything in the lab's network namespaces.
func (l *lab) processes() ([]process, error) {
	spaces := map[uint64]bool{}
	err := filepath.WalkDir(filepath.Join("/run/packetwalk", l.name, "netns"), func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			spaces[inode(path)] = true
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	pidFile, _ := os.ReadFile(filepath.Join("/run/packetwalk", l.name, "lab.pid"))
	labPid := strings.TrimSpace(string(pidFile))
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, dir := range dirs {
		if filepath.Base(dir) != labPid && !spaces[inode(dir+"/ns/net")] {
			continue
		}
		if p, ok := memoryOf(dir); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// memoryOf reads proc_pid_smaps_rollup(5).
func memoryOf(dir string) (process, bool) {
	rollup, err := os.ReadFile(dir + "/smaps_rollup")
	if err != nil {
		return process{}, false
	}
	p := process{}
	for _, line := range strings.Split(string(rollup), "\n") {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kb, _ := strconv.ParseFloat(f[1], 64)
		switch f[0] {
		case "Rss:":
			p.rss = kb / 1024
		case "Pss:":
			p.pss = kb / 1024
		}
	}
	cmdline, _ := os.ReadFile(dir + "/cmdline")
	args := strings.Split(string(cmdline), "\x00")
	p.name = filepath.Base(args[0])
	if p.name == "packetwalk-controlplane" && len(args) > 1 {
		p.name = args[1]
	}
	stat, _ := procstat.Read(dir) // of one that has ended: zero
	p.cpu = stat.CPU.Seconds()
	return p, p.rss > 0
}
