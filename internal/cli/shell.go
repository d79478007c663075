//go:build linux

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"packetwalk.dev/internal/base/tempfile"
	"packetwalk.dev/internal/lab"
)

func shellCommand(s Streams) *cobra.Command {
	var name, line string
	c := &cobra.Command{
		Use:   "shell [--name NAME] [-c LINE | -- COMMAND...]",
		Short: "a shell in which kubectl, az and ssh work on the lab, as the articles type them",
		Long: `A shell on this machine in which kubectl (also as k), az, "ssh HOST" and packetwalk itself work on one lab, as the articles type them;
$KUBECONFIG is the lab's, for other programs. HOST may be an address and have a user before it; sudo does nothing there, because you are
root already. -c runs a line of shell and ends, -- a command; without a terminal, commands are read from standard input. What is called
kubectl, az or ssh outside stays as it is. A lab called NAME need not be up: packetwalk up in the shell makes it.`,
		Example: `  packetwalk shell
  packetwalk shell -c 'kubectl get pods -o wide | grep whereami'
  packetwalk shell --name demo -- ssh vm curl -s 203.0.113.11`,
		RunE: func(_ *cobra.Command, args []string) error {
			if line != "" && len(args) > 0 {
				return badInput{errors.New("-c LINE and a COMMAND are two; write one of them")}
			}
			if line != "" {
				args = []string{shellProgram(), "-c", line}
			}
			return shell(s, name, args)
		},
	}
	c.Flags().SetInterspersed(false) // flags behind COMMAND are its own
	c.Flags().StringVarP(&line, "command", "c", "", "run this line of shell and end")
	nameFlag(c, &name)
	return c
}

// shell runs a command, or an interactive shell where there is none, on a lab.
func shell(s Streams, name string, args []string) error {
	if err := needRoot(); err != nil {
		return err
	}
	d, err := shellLab(name)
	if err != nil {
		return badInput{fmt.Errorf("%w\nno shell was started: kubectl in this terminal is still your own", err)}
	}
	w, err := newWorkplace(d)
	if err != nil {
		return err
	}
	defer w.remove()
	interactive := len(args) == 0 && term.IsTerminal(int(s.In.Fd()))
	if len(args) == 0 {
		if args, err = w.shell(interactive); err != nil {
			return err
		}
	}
	if interactive && !d.Exists() {
		fmt.Fprintf(s.Err, "lab %q is not up: 'packetwalk up' in here makes it\n", d.Name())
	}
	path, err := w.find(args[0])
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: path, Args: args, Env: w.env, Stdin: s.In, Stdout: s.Out, Stderr: s.Err}
	return await(cmd, interactive)
}

// shellLab returns the lab that is meant. One that is named need not exist.
func shellLab(name string) (lab.Dir, error) {
	if name == "" {
		name = os.Getenv(lab.NameVariable)
	}
	if name == "" {
		return lab.Select("")
	}
	return lab.DirOf(name), lab.CheckName(name)
}

// await runs a command to its end and gives its exit status as an error. The terminal's Ctrl-C reaches the command by itself; a signal to
// this process alone is passed on, and an interactive shell, which heeds no other one, gets SIGHUP.
func await(cmd *exec.Cmd, interactive bool) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-signals:
			if interactive && sig == unix.SIGINT {
				continue
			}
			if interactive {
				sig = unix.SIGHUP
			}
			_ = cmd.Process.Signal(sig) // it may have ended
		case err := <-ended:
			var status *exec.ExitError
			switch {
			case !errors.As(err, &status):
				return err
			case status.ExitCode() < 0: // by a signal
				return exitStatus(128 + int(status.Sys().(syscall.WaitStatus).Signal()))
			}
			return exitStatus(status.ExitCode())
		}
	}
}

// A workplace is where commands find the lab's programs first: a temporary folder, and an environment in which it is at the head of PATH.
type workplace struct {
	dir string
	env []string
	lab lab.Dir
}

// programs are what a workplace has beside packetwalk: scripts, because each is one command of packetwalk's.
var programs = map[string]string{
	"kubectl": `exec "${0%/*}/packetwalk" kubectl "$@"`,
	"k":       `exec "${0%/*}/packetwalk" kubectl "$@"`,
	"az":      `exec "${0%/*}/packetwalk" az "$@"`,
	"ssh":     `exec "${0%/*}/packetwalk" ssh "$@"`,
	// The articles' users are not root; in a lab's shell every user is. The machine's own sudo would look for az and kubectl in its own
	// PATH.
	"sudo": `case ${1-} in -*) echo "sudo: invalid option; every command of a lab's shell runs as root" >&2; exit 1;; esac; exec env "$@"`,
}

// isProgram reports whether a workplace has a program of its own called name.
func isProgram(name string) bool {
	return slices.Contains(programNames(), name)
}

// programNames returns the names of a workplace's own programs, sorted.
func programNames() []string {
	return slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(programs)), "packetwalk", "kubectl-packetwalk")))
}

// newWorkplace creates the folder for a lab, which may be down. The caller removes it.
func newWorkplace(d lab.Dir) (*workplace, error) {
	dir, err := os.MkdirTemp("", "packetwalk-shell-")
	if err != nil {
		return nil, tempfile.Explain(err)
	}
	w := &workplace{dir: dir, lab: d}
	if err := w.addPrograms(); err != nil {
		w.remove()
		return nil, tempfile.Explain(err)
	}
	return w, nil
}

// addPrograms writes what is in the workplace's PATH, and sets its environment.
func (w *workplace) addPrograms() error {
	// What is in it is not secret, and the go command, which "image build" runs as the user who called sudo, comes into a tour's folder.
	if err := os.Chmod(w.dir, 0o711); err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	bin := filepath.Join(w.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return err
	}
	for _, name := range []string{"packetwalk", "kubectl-packetwalk"} {
		if err := os.Symlink(program, filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			return err
		}
	}
	w.env = environment(os.Environ(), bin, w.lab)
	return nil
}

func (w *workplace) remove() { _ = os.RemoveAll(w.dir) }

// environment returns an environment whose PATH starts with the folder bin, and which selects a lab. It adds the folders of administrators'
// programs, which are not in every user's PATH.
func environment(environ []string, bin string, d lab.Dir) []string {
	var env []string
	path := ""
	for _, v := range environ {
		switch key, value, _ := strings.Cut(v, "="); key {
		case "PATH":
			path = value
		case lab.NameVariable, "BASH_ENV", "ENV":
		default:
			if name, isFunction := strings.CutPrefix(key, "BASH_FUNC_"); isFunction && isProgram(strings.TrimSuffix(name, "%%")) {
				continue
			}
			env = append(env, v)
		}
	}
	return append(d.ClientEnvironment(env), "PATH="+bin+":"+path+":/usr/sbin:/sbin", lab.NameVariable+"="+d.Name())
}

// find looks a program up in the workplace's PATH.
func (w *workplace) find(program string) (string, error) {
	if strings.Contains(program, "/") {
		return program, nil
	}
	for _, v := range w.env {
		list, isPath := strings.CutPrefix(v, "PATH=")
		if !isPath {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			path := filepath.Join(dir, program)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return path, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w in $PATH", program, fs.ErrNotExist)
}

// shellProgram returns bash where it is installed, else sh.
func shellProgram() string {
	if path, err := exec.LookPath("bash"); err == nil {
		return path
	}
	return "/bin/sh"
}

// rc is what an interactive shell reads: the user's own settings first, which may set PATH and the prompt, then the lab's variables.
const rc = `%[1]s
%[2]s
PATH='%[3]s':$PATH
PS1='(%[4]s) '"${PS1-\$ }"
`

// ownSettings are the user's settings of bash. What they say of the programs and variables by which commands find a cluster is undone.
const ownSettings = `[ ! -r ~/.bashrc ] || . ~/.bashrc
\unalias %[1]s 2>/dev/null
\unset -f %[1]s
\unset -v "${!KUBERNETES_@}"`

// shell gives the command line of a shell, and for an interactive one the settings that it reads.
func (w *workplace) shell(interactive bool) ([]string, error) {
	program := shellProgram()
	if !interactive {
		return []string{program}, nil
	}
	file, own := filepath.Join(w.dir, "rc"), ""
	if filepath.Base(program) == "bash" {
		own = fmt.Sprintf(ownSettings, strings.Join(programNames(), " "))
	}
	var variables strings.Builder
	for _, v := range append(w.lab.ClientEnvironment(nil), lab.NameVariable+"="+w.lab.Name()) {
		name, value, _ := strings.Cut(v, "=")
		fmt.Fprintf(&variables, "export %s='%s'\n", name, value)
	}
	text := fmt.Sprintf(rc, own, variables.String(), filepath.Join(w.dir, "bin"), w.lab.Name())
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, tempfile.Explain(err)
	}
	if own != "" {
		return []string{program, "--rcfile", file, "-i"}, nil
	}
	w.env = append(w.env, "ENV="+file)
	return []string{program, "-i"}, nil
}

// sshOptions are those of ssh(1) that have a value, of the ones that change nothing here: a lab's hosts ask for no key and know no port.
var sshOptions = []string{"-i", "-J", "-l", "-o", "-p", "-F"}

// sshHost takes a HOST off ssh's arguments as people type them: -i KEY -J JUMP USER@HOST.
func sshHost(args []string) (host string, rest []string, err error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		switch {
		case slices.Contains(sshOptions, args[0]) && len(args) > 1:
			args = args[2:]
		case slices.Contains([]string{"-A", "-q", "-T", "-t", "-tt", "-4", "-x"}, args[0]):
			args = args[1:]
		default:
			return "", nil, fmt.Errorf("ssh: %s means nothing here: packetwalk ssh [--name NAME] HOST [-- COMMAND...]", args[0])
		}
	}
	if len(args) == 0 {
		return "", nil, errors.New("ssh needs a host: packetwalk ssh HOST [-- COMMAND...]")
	}
	host = args[0]
	if _, after, ok := strings.Cut(host, "@"); ok {
		host = after
	}
	return host, args[1:], nil
}
