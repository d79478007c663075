//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/base/sudouser"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/plan"
)

// addLabCommands adds the commands that make labs and work in them.
func addLabCommands(root *cobra.Command, s Streams) {
	root.AddGroup(&cobra.Group{ID: "lab", Title: "A cluster:"}, &cobra.Group{ID: "inside", Title: "In it:"})
	add(root, "lab", upCommand(s), listCommand(s), statusCommand(s), downCommand(s), tourCommand(s), importCommand(s), doctorCommand(s))
	add(root, "inside", shellCommand(s), kubectlCommand(s), sshCommand(s), azCommand(s), logsCommand(s))
	add(root, "packets", dropsCommand(s))
	root.AddCommand(labProcessCommand(), imageCommand(s))
	addNodeCommand(root, s)
}

// completeLab completes --name by the labs of this machine.
func completeLab(c *cobra.Command) {
	_ = c.RegisterFlagCompletionFunc("name", completeBy(func(context.Context, []string) ([]string, error) { // the flag is there
		dirs, err := lab.List()
		names := make([]string, len(dirs))
		for i, d := range dirs {
			names[i] = d.Name()
		}
		return names, err
	}))
}

func nameFlag(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "name", "", "the lab's name (without it: $"+lab.NameVariable+", the only lab, or \""+lab.DefaultName+"\")")
	completeLab(c)
}

// labOf returns the lab that a command of root's means.
func labOf(name string) (lab.Dir, error) {
	if err := needRoot(); err != nil {
		return "", err
	}
	d, err := lab.Select(name)
	if err != nil {
		return "", badInput{err}
	}
	return d, nil
}

func upCommand(s Streams) *cobra.Command {
	var file, name string
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "up [-f cluster.yaml] [--name NAME] [--timeout DURATION]",
		Short: "bring a cluster up, or change one that is up to what the file says",
		Long: `Makes a cluster from a cluster.yaml (see examples/), and returns when it is ready. Without a file it is as "az aks create" makes it today: two
nodes with Azure CNI Overlay behind a Standard load balancer. A VM is in their VNet, and a server in a peered one.

On a lab that is there it prints what differs from the file, and changes that while everything runs: VNets, peerings, subnets, route tables,
security groups, VMs, internet hosts, front ends, the outbound type, nonMasqueradeCIDRs, addons, images, and node pools: which there are,
how many nodes each has, their labels and taints. Where the file differs in anything else it says so and does nothing (exit status 2). A lab
whose process has died is taken up again, and what 'packetwalk status' names as missing of its network is made again; without -f the lab
stays what it is, or becomes what it was being changed to.`,
		Example: `  packetwalk up
  packetwalk up -f examples/azure-cni/cluster.yaml --name part1`,
		Args: noArguments("the file is -f FILE, the lab's name --name NAME"),
		RunE: func(c *cobra.Command, _ []string) error {
			return up(c.Context(), s, file, name, timeout)
		},
	}
	c.Flags().StringVarP(&file, "file", "f", "", "the cluster's description (see examples/)")
	c.Flags().StringVar(&name, "name", "", "the lab's name, so that several can run side by side (without it: $"+lab.NameVariable+", or \""+
		lab.DefaultName+"\")")
	completeLab(c)
	boundedDuration(c.Flags(), &timeout, "timeout", lab.DefaultTimeout, time.Second, 24*time.Hour, "how long all of it may take")
	return c
}

func up(ctx context.Context, s Streams, file, name string, timeout time.Duration) (err error) {
	name = cmp.Or(name, os.Getenv(lab.NameVariable), lab.DefaultName)
	if err := lab.CheckName(name); err != nil {
		return badInput{err}
	}
	d := lab.DirOf(name)
	source, err := readCluster(file, d)
	if err != nil {
		return err
	}
	if err := needRoot(); err != nil {
		return err
	}
	p := newProgress(s.Out)
	if isTerminal(s.Err) {
		watched, stop := context.WithCancel(ctx)
		defer stop()
		go p.watch(watched, s.Err, func(ctx context.Context) string { return waitsFor(ctx, d) })
	}
	_, existed, _ := d.ClusterSource()
	defer func() {
		if err != nil && ctx.Err() != nil {
			printNotes(s, "interrupted", afterInterrupt(d, existed, err))
			err = exitStatus(130)
		}
	}()
	needs, err := lab.Needs(d, source)
	if err != nil {
		return err
	}
	if err := checkMachine(ctx, s.Out, needs...); err != nil {
		return err
	}
	bin, err := lab.FindBinaries()
	if err != nil {
		return err
	}
	err = lab.Up(ctx, lab.UpOptions{
		Dir:      d,
		Cluster:  source,
		Timeout:  timeout,
		Argv:     []string{bin.Packetwalk, labProcess, "--name", name},
		Plan:     func(changes []cluster.Change) { printPlan(s.Out, name, changes) },
		Progress: p.step,
	})
	if errors.Is(err, lab.ErrNewCluster) {
		return badInput{err}
	}
	if err != nil {
		return err
	}
	p.print(s.Out, fmt.Sprintf("lab %q is ready", name))
	if n, err := lab.Network(ctx, d); err == nil {
		for _, text := range plan.HalfPeerings(n) {
			fmt.Fprintln(s.Out, "warning:", termsafe.Text(text))
		}
	}
	which := ""
	if meant, err := lab.Select(""); err != nil || meant != d { // several are there
		which = " --name " + name
	}
	if !existed {
		fmt.Fprintln(s.Out, "          CoreDNS starts now: for some seconds pods cannot look up names")
	}
	printNextSteps(s.Out, which, d)
	return nil
}

// afterInterrupt says what is left of a lab when up was interrupted.
func afterInterrupt(d lab.Dir, existed bool, err error) string {
	self := readersCommand()
	switch {
	case !d.Exists():
		return fmt.Sprintf("nothing of lab %q is left", d.Name())
	case existed:
		return fmt.Sprintf("lab %q is still there: '%s up --name %s' does the rest", d.Name(), self, d.Name())
	}
	return fmt.Sprintf("lab %q is not removed whole; '%s down --name %s' removes the rest: %v", d.Name(), self, d.Name(), err)
}

// printNextSteps prints the end of up's output. Only root may read the kubeconfig.
func printNextSteps(out io.Writer, which string, d lab.Dir) {
	sudo, self := sudoPrefix(), readersCommand()
	fmt.Fprintf(out, "\nTry:  %s kubectl%s get nodes -o wide\n      %s status%s\n", self, which, self, which)
	if sudo == "" {
		fmt.Fprintf(out, "      export KUBECONFIG=%s\n", d.Kubeconfig())
	}
}

// readersCommand returns how who reads an output starts this program: with sudo, and by its file, where that is needed.
func readersCommand() string {
	self := ownCommand()
	if filepath.Base(strings.Trim(self, "'")) != "packetwalk" { // the plugin, or a test
		self = "packetwalk"
	}
	return sudoPrefix() + self
}

// ownCommand returns how a shell finds this program: by its name where PATH leads to it, else by its file.
func ownCommand() string {
	const name = "packetwalk"
	self, err := os.Executable()
	if err != nil {
		return name
	}
	if found, err := exec.LookPath(name); err == nil && sameFile(found, self) {
		return name
	}
	if wd, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(wd, self); err == nil && !strings.HasPrefix(relative, "..") {
			if !strings.Contains(relative, string(filepath.Separator)) {
				relative = "./" + relative
			}
			self = relative
		}
	}
	if strings.ContainsAny(self, " \t\n'\"\\$`*?[]();&|<>#~!{}") {
		return "'" + strings.ReplaceAll(self, "'", `'\''`) + "'"
	}
	return self
}

// sameFile reports whether two paths lead to one file.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// sudoPrefix returns the words before a command that needs root, for the user who called us.
func sudoPrefix() string {
	if caller, err := sudouser.Get(); err == nil && caller.Credential != nil && caller.Credential.Uid != 0 {
		return "sudo "
	}
	return ""
}

// printPlan says what is to be changed on a lab that is there.
func printPlan(w io.Writer, name string, changes []cluster.Change) {
	fmt.Fprintf(w, "changes to lab %q:\n", name)
	for _, c := range changes {
		note := ""
		if c.NewCluster {
			note = "  (needs a new cluster)"
		}
		fmt.Fprintf(w, "  %s%s\n", termsafe.Text(c.String()), note)
	}
}

func downCommand(s Streams) *cobra.Command {
	var name string
	var all bool
	c := &cobra.Command{
		Use:   "down [--name NAME] [--all]",
		Short: "remove a lab and everything of it",
		Long:  `Removes a lab: its processes, network namespaces, mounts and files, also after a crash of any part. What is not a lab's stays as it is.`,
		Args:  noArguments("the lab's name is --name NAME"),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := needRoot(); err != nil {
				return err
			}
			list := lab.List
			if all {
				list = lab.ListAll
			}
			dirs, err := list()
			if err != nil {
				return err
			}
			if !all {
				if len(dirs) == 0 && cmp.Or(name, os.Getenv(lab.NameVariable)) == "" {
					fmt.Fprintln(s.Out, "no lab is here")
					return nil
				}
				d, err := lab.Select(name)
				if missing, ok := errors.AsType[*lab.NotFoundError](err); ok { // how to make it is no remedy here
					err = missing
				}
				if err != nil {
					return badInput{err}
				}
				dirs = []lab.Dir{d}
			}
			for _, d := range dirs {
				// Do not abort a removal midway: an interrupt waits for the end of this lab's removal.
				if err := lab.Destroy(context.WithoutCancel(c.Context()), d); err != nil {
					return fmt.Errorf("lab %s: %w", d.Name(), err)
				}
				fmt.Fprintf(s.Out, "lab %q is gone\n", d.Name())
			}
			return nil
		},
	}
	nameFlag(c, &name)
	c.Flags().BoolVar(&all, "all", false, "every lab on this machine, and what is left of labs that a restart of the machine has ended")
	return c
}

func logsCommand(s Streams) *cobra.Command {
	var name string
	var follow bool
	var tail int
	c := &cobra.Command{
		Use:   "logs HOST|COMPONENT|container-group/NAME [--tail N] [--follow]",
		Short: "print the log of a host, a component of the lab or a container group",
		Long: `Prints the log of a HOST (a node's agent, the application of a VM or an internet host), of a COMPONENT (lab, etcd, kube-apiserver,
kube-controller-manager, kube-scheduler, cloud-controller-manager), or of a container group's service proxy. Of each at least the last 4 MB
are kept. Pods' logs are kubectl's: packetwalk kubectl logs POD.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("logs needs one HOST or COMPONENT: packetwalk logs lab")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			d, err := labOf(name)
			if err != nil {
				return err
			}
			path, err := logPath(d, args[0])
			if err != nil {
				return badInput{err}
			}
			return copyLog(c.Context(), forReading(s.Out), path, tail, follow)
		},
	}
	nameFlag(c, &name)
	c.ValidArgsFunction = completeBy(func(_ context.Context, args []string) ([]string, error) {
		d, err := lab.Select(name)
		if err != nil || len(args) > 0 {
			return nil, err
		}
		return logNames(d), nil
	})
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as the log grows, until interrupted")
	boundedCount(c.Flags(), &tail, "tail", -1, -1, math.MaxInt32, "how many of the last lines to print; -1 prints all")
	return c
}

// logPath finds the log by its name; one that is not there is answered with those that are.
func logPath(d lab.Dir, what string) (string, error) {
	path := d.Log(filepath.Base(what))
	if group, ok := strings.CutPrefix(what, "container-group/"); ok {
		path = d.GroupLog(filepath.Base(group))
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	logs := logNames(d)
	if e, err := endpoint.Parse(what); err == nil && e.Kind.Namespaced() {
		return "", fmt.Errorf("the logs of pods are kubectl's: packetwalk kubectl logs -n %s %s/%s", cmp.Or(e.Namespace, "default"), e.Kind, e.Name)
	}
	if _, err := d.FindHost(what); err == nil {
		return "", fmt.Errorf("%s has no log: it runs no application (app in cluster.yaml); there are: %s", what, strings.Join(logs, ", "))
	}
	return "", fmt.Errorf("no log of %q; there are: %s; of a pod: packetwalk kubectl logs POD", what, strings.Join(logs, ", "))
}

// logNames returns the names of the logs that a lab has, sorted.
func logNames(d lab.Dir) []string {
	var logs []string
	for prefix, pattern := range map[string]string{"": d.Log("*"), "container-group/": d.GroupLog("*")} {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			logs = append(logs, prefix+strings.TrimSuffix(filepath.Base(f), ".log"))
		}
	}
	slices.Sort(logs)
	return logs
}

// copyLog prints a log with what was set aside of it, or only the last lines where tail is not negative.
func copyLog(ctx context.Context, w io.Writer, path string, tail int, follow bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	aside, err := os.Open(supervise.Aside(path)) // after the log: lines that are set aside in between are in one of them
	if err == nil {
		defer aside.Close()
	} else if !errors.Is(err, os.ErrNotExist) {
		return err
	}
	missing := tail
	if tail >= 0 {
		if missing, err = seekLines(f, tail); err != nil {
			return err
		}
	}
	if aside != nil && missing != 0 {
		if missing > 0 {
			if _, err := seekLines(aside, missing); err != nil {
				return err
			}
		}
		if _, err := io.Copy(w, aside); err != nil {
			return err
		}
	}
	for {
		n, err := io.Copy(w, f)
		if err != nil {
			return err
		}
		if n == 0 { // perhaps it was set aside, and began anew
			if err := rewind(f); err != nil {
				return err
			}
		}
		if !follow || !pause.For(ctx, 200*time.Millisecond) {
			return nil
		}
	}
}

// rewind goes to the beginning of a file that has become shorter than what was read of it.
func rewind(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil || at <= info.Size() {
		return err
	}
	_, err = f.Seek(0, io.SeekStart)
	return err
}

// tailBlock is how many bytes of a log are read at once from its end.
const tailBlock = 64 << 10

// seekLines goes to where the last n lines of a file begin, and returns how many of them it lacks. A line that has no end yet is one.
func seekLines(f *os.File, n int) (missing int, err error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return 0, err
	}
	block := make([]byte, tailBlock)
	for at := end; at > 0; {
		size := min(at, tailBlock)
		at -= size
		if _, err := f.ReadAt(block[:size], at); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			if block[i] != '\n' || at+i == end-1 { // the last line's own end
				continue
			}
			if n--; n == 0 {
				_, err := f.Seek(at+i+1, io.SeekStart)
				return 0, err
			}
		}
	}
	if end > 0 {
		n-- // the first line, which no other's end precedes
	}
	_, err = f.Seek(0, io.SeekStart)
	return n, err
}

const labProcess = "lab-process"

// labProcessCommand makes the command that up starts in the background.
func labProcessCommand() *cobra.Command {
	var name string
	var timeout time.Duration
	c := &cobra.Command{
		Use:    labProcess,
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			bin, err := lab.FindBinaries()
			if err != nil {
				return err
			}
			progress := os.NewFile(3, "progress")
			if progress == nil {
				return errors.New("lab-process is started by 'packetwalk up'")
			}
			return lab.Run(c.Context(), lab.DirOf(name), bin, timeout, progress)
		},
	}
	c.Flags().StringVar(&name, "name", "", "")
	c.Flags().DurationVar(&timeout, "timeout", lab.DefaultTimeout, "")
	return c
}
