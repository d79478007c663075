//go:build linux

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/az"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/isolation"
	"packetwalk.dev/internal/session"
)

// cutNameFlag removes a leading --name NAME from arguments that belong to another program.
func cutNameFlag(args []string) (name string, rest []string) {
	switch {
	case len(args) >= 2 && args[0] == "--name":
		return args[1], args[2:]
	case len(args) >= 1 && strings.HasPrefix(args[0], "--name="):
		return strings.TrimPrefix(args[0], "--name="), args[1:]
	}
	return "", args
}

func kubectlCommand(Streams) *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [--name NAME] ARGS...",
		Short:              "upstream's kubectl on the lab's cluster, as its administrator",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			name, args := cutNameFlag(args)
			d, err := labOf(name)
			if err != nil {
				return err
			}
			if _, err := os.Stat(d.Kubeconfig()); err != nil { // without one, kubectl would ask another cluster
				return cmp.Or(lab.CheckStarting(c.Context(), d), err)
			}
			bin, err := lab.FindBinaries()
			if err != nil {
				return err
			}
			env := d.ClientEnvironment(os.Environ())
			if os.Getenv("GOGC") == "" {
				env = append(env, "GOGC=400") // collecting garbage is a sixth of its start
			}
			return fmt.Errorf("run kubectl: %w", unix.Exec(bin.ControlPlane, append([]string{"kubectl"}, args...), env))
		},
	}
}

func sshCommand(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "ssh [--name NAME] HOST [-- COMMAND...]",
		Short: "a shell or a command in the network of a node, VM, internet host, fabric or pod",
		Long: `A shell or a command in the network of a HOST: a node, a VM or an internet host by its name, "fabric", "internet", "controlplane", pod/NAMESPACE/NAME,
deploy/NAME, sts/, ds/, job/ or svc/NAME (their first pod), as walk names them, container-group/NAME (a pod of the virtual node) or
container-host/NAME (the machine of Azure's that it runs on).
The command sees the machine's own files and programs (iptables-save, conntrack, tcpdump, ip, curl) and the host's interfaces, rules and connections;
on a node with runtime containerd it sees the node's files and processes.
A COMMAND that is quoted as one word is for the shell: 'iptables-save | grep MASQ'. As with ssh(1), HOST may be an address and have a
user before it (jose@10.224.0.4), and -i, -J, -l, -o and -p with their values may stand before it; they change nothing.`,
		DisableFlagParsing: true,
		ValidArgsFunction: completeBy(func(ctx context.Context, args []string) ([]string, error) {
			name, rest := cutNameFlag(args)
			if len(rest) > 0 {
				return nil, nil
			}
			return hostsOf(ctx, name)
		}),
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 && (args[0] == "-h" || args[0] == "--help") {
				return c.Help()
			}
			name, args := cutNameFlag(args)
			host, command, err := sshHost(args)
			if err != nil {
				return badInput{err}
			}
			switch {
			case len(command) > 0 && command[0] == "--":
				command = command[1:]
			case len(command) > 0 && strings.HasPrefix(command[0], "-"):
				return badInput{fmt.Errorf("%s stands behind the host, where the command begins: packetwalk ssh [--name NAME] %s [-- COMMAND...]",
					command[0], host)}
			}
			if len(command) == 1 && strings.ContainsAny(command[0], " \t\n;&|<>()$`*?~\"'\\") { // as ssh(1) does with what was quoted
				command = []string{"sh", "-c", command[0]}
			}
			return ssh(c.Context(), s, name, host, command)
		},
	}
}

// hostsOf returns the names of a lab's hosts, alone and with their kinds.
func hostsOf(ctx context.Context, name string) ([]string, error) {
	opened, err := session.OpenLab(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = opened.Close(ctx) }()
	all := opened.Source().Names()
	for _, host := range slices.Clone(all) {
		if kind, name, _ := strings.Cut(host, "/"); kind == "node" || kind == "vm" || kind == "internet" {
			all = append(all, name)
		}
	}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" }), nil
}

func ssh(ctx context.Context, s Streams, name, host string, command []string) error {
	d, err := labOf(name)
	if err != nil {
		return err
	}
	if address, err := netip.ParseAddr(host); err == nil {
		if host, err = hostAt(ctx, d, address); err != nil {
			return badInput{err}
		}
	}
	if host, err = hostOfEnd(host, labObjects(ctx, d.Name())); err != nil {
		return badInput{err}
	}
	at, err := d.FindHost(host)
	if err != nil {
		return cmp.Or(lab.CheckStarting(ctx, d), error(badInput{err}))
	}
	bin, err := lab.FindBinaries()
	if err != nil {
		return err
	}
	code, err := isolation.HostCommand{NetNS: at.NetNS, Hostname: at.Name, Args: command, Env: d.HostEnvironment(os.Environ()),
		ResolvConf: at.ResolvConf, Machine: at.Machine}.Run(ctx, bin.App, s.In, s.Out, s.Err)
	if err != nil {
		return err
	}
	if code != 0 {
		return exitStatus(code)
	}
	return nil
}

// hostAt returns the machine that has an address, as ssh(1) would find it.
func hostAt(ctx context.Context, d lab.Dir, address netip.Addr) (string, error) {
	status := lab.StatusOf(ctx, d)
	for _, n := range status.Nodes {
		if n.Address == address.String() {
			return n.Name, nil
		}
	}
	for _, h := range status.Hosts {
		if h.Address == address.String() || h.PublicIP == address.String() {
			return h.Name, nil
		}
	}
	return "", fmt.Errorf("no node, VM or internet host has the address %s; 'packetwalk status -o wide' has theirs", address)
}

func azCommand(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:                "az [--name NAME] network|aks|container|vm ...",
		Short:              "Azure's own view of the lab, in the words of the Azure CLI",
		Long:               "Azure's own view of the lab, in the words of the Azure CLI. --name, right after az, names the lab.\n\n" + az.Usage(),
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			name, args := cutNameFlag(args)
			if len(args) == 0 || args[0] == "-h" || args[0] == "--help" {
				return c.Help()
			}
			d, err := labOf(name)
			if err != nil {
				return err
			}
			view, err := azureView(c.Context(), s, d)
			if err != nil {
				return err
			}
			out := termsafe.Writer(s.Out)
			if len(args) > 1 && args[0] == "container" && args[1] == "logs" {
				out = forReading(s.Out)
			}
			if code := az.Run(args, view, out, termsafe.Writer(s.Err)); code != 0 {
				return exitStatus(code)
			}
			return nil
		},
	}
}

// azureView returns Azure's view of a lab. It reports changes on the error output: the other one is the command's.
func azureView(ctx context.Context, s Streams, d lab.Dir) (az.Lab, error) {
	network, err := lab.Network(ctx, d)
	if err != nil {
		return az.Lab{}, err
	}
	is, err := lab.Describe(ctx, d)
	if err != nil {
		return az.Lab{}, err
	}
	groups, err := lab.ContainerGroups(ctx, d)
	if err != nil {
		return az.Lab{}, err
	}
	logs := func(group, container string, follow bool, w io.Writer) error {
		return lab.ContainerLogs(ctx, d, group, container, follow, w)
	}
	edit := func(edit func([]byte) ([]byte, error), wait bool) (az.Lab, error) {
		if err := lab.Edit(ctx, d, edit, wait, newProgress(s.Err).step); err != nil {
			return az.Lab{}, err
		}
		return azureView(ctx, s, d)
	}
	return az.Lab{Network: network, Cluster: is.Cluster, Changing: is.Changing, KubernetesVersion: plan.KubernetesVersion, Edit: edit,
		ContainerGroups: groups, ContainerLogs: logs}, nil
}
