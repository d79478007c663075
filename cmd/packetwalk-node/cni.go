package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/node/cniinstall"
	"packetwalk.dev/internal/node/kube"
)

// Sub-commands about the CNI plugin packetwalk-cni. They are here, and not in the plugin, which runs for each pod and is small.
const (
	installCNI = "install-cni"
	removeCNI  = "remove-cni"
	checkCNI   = "check-cni"
)

var cniCommands = map[string]string{
	installCNI: "write the CNI plugin and its configuration on the node",
	removeCNI:  "take away what install-cni has written",
	checkCNI:   "tell whether what install-cni has written, in a pod that pod's, is there",
}

// cniCommand is what the command line of one asks for.
type cniCommand struct {
	cniinstall.Options
	name                                        string
	conflist, kubeconfig, server, node, cleanup string
	keep                                        bool
	// pods is the range of the node's pods, which never becomes another; invalid before it is asked for.
	pods netip.Prefix
}

func (c *cniCommand) flags() *pflag.FlagSet {
	f := pflag.NewFlagSet(c.name, pflag.ContinueOnError)
	f.Usage = func() {}
	f.StringVar(&c.Bin, "bin-dir", "/opt/cni/bin", "the node's `directory` of CNI plugins")
	f.StringVar(&c.Conf, "conf-dir", "/etc/cni/net.d", "the node's `directory` of network configurations")
	if c.name != removeCNI {
		podUID(f, &c.Owner)
	}
	if c.name == installCNI {
		f.StringVar(&c.conflist, "conflist", "",
			"`file` with the network configuration list; the value usePodCidr in it becomes the IPv4 range of the node's pods")
		f.StringVar(&c.Name, "name", "10-packetwalk.conflist", "the configuration's `name` on the node")
		f.StringSliceVar(&c.Sources, "source-dirs", []string{"/usr/bin", "/usr/lib/cni"}, "`directories` with the plugins to install")
		f.BoolVar(&c.keep, "keep", false, "keep running, and put back what is missing")
		f.StringVar(&c.cleanup, "cleanup-on-delete", "",
			"with --keep: at the end remove everything if this DaemonSet, `NAMESPACE/NAME`, has been deleted; otherwise it stays")
		f.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig `file`; without one, the service account of the pod")
		f.StringVar(&c.server, "master", "", "`URL` of the API server, whatever the kubeconfig file says")
		f.StringVar(&c.node, "node-name", "", "`name` of this node in the API, for usePodCidr")
	}
	return f
}

func parseCNI(args []string) (*cniCommand, error) {
	c := &cniCommand{name: args[0]}
	f := c.flags()
	err := f.Parse(args[1:])
	switch namespace, name, _ := strings.Cut(c.cleanup, "/"); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("Usage: packetwalk-node %s [flags]: %s\n%s", c.name, cniCommands[c.name], f.FlagUsages())
		return nil, err
	case err != nil:
		return nil, err
	case f.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q; all settings are flags", f.Arg(0))
	case c.name == installCNI && c.conflist == "":
		return nil, errors.New("--conflist: not given; write the file with the network configuration list")
	case c.cleanup != "" && (namespace == "" || name == "" || strings.Contains(name, "/")):
		return nil, fmt.Errorf("--cleanup-on-delete: %q is not NAMESPACE/NAME", c.cleanup)
	case c.cleanup != "" && !c.keep:
		return nil, errors.New("--cleanup-on-delete: it needs --keep")
	}
	return c, nil
}

// runCNI runs a sub-command and gives the exit status.
func runCNI(args []string) int {
	c, err := parseCNI(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(os.Stderr, "packetwalk-node %s: %v\n", args[0], err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-node %s: %v\n", c.name, err)
		return 1
	}
	return 0
}

func (c *cniCommand) run(ctx context.Context) error {
	logger := newLogger()
	say := func(notes []string) {
		for _, n := range notes {
			logger.Info(n)
		}
	}
	switch {
	case c.name == checkCNI:
		return cniinstall.Check(c.Dirs, c.Owner)
	case c.name == removeCNI:
		notes, err := cniinstall.Remove(c.Dirs, "")
		say(notes)
		return err
	case !c.keep:
		o, err := c.options(ctx)
		if err != nil {
			return err
		}
		notes, err := cniinstall.Install(o)
		say(notes)
		return err
	}
	c.Owner = cmp.Or(c.Owner, rand.Text())
	if c.cleanup == "" {
		return cniinstall.Keep(ctx, c.options, nil, logger)
	}
	owner, err := c.daemonSet(logger)
	if err != nil {
		return err
	}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx)) // also after SIGTERM, until it is known why that came
	defer cancel()
	go owner.Run(watch)
	return cniinstall.Keep(ctx, c.options, owner.Deleted, logger)
}

// daemonSet is the DaemonSet whose deletion is the end of what is installed.
func (c *cniCommand) daemonSet(logger *slog.Logger) (*kube.Owner, error) {
	config, err := c.api()
	if err != nil {
		return nil, err
	}
	trouble := func(what string, err error) {
		if err != nil {
			logger.Warn(fmt.Sprintf("%s: %v", what, err))
		}
	}
	namespace, name, _ := strings.Cut(c.cleanup, "/")
	return kube.NewOwner(config, trouble, namespace, name)
}

func (c *cniCommand) api() (*rest.Config, error) {
	return kube.Config(c.server, c.kubeconfig, "packetwalk-node/"+version)
}

// options are what is to be installed now: the file may have changed.
func (c *cniCommand) options(ctx context.Context) (cniinstall.Options, error) {
	const most = 1 << 20
	text, err := limitio.ReadFile(c.conflist, most)
	if err != nil {
		return c.Options, err
	}
	o := c.Options
	o.Conflist, err = cniinstall.WithPodRange(text, func() (_ netip.Prefix, err error) {
		if c.pods.IsValid() {
			return c.pods, nil
		}
		if c.node == "" {
			return netip.Prefix{}, errors.New("--node-name: not given, and the configuration asks for the range of the node's pods")
		}
		config, err := c.api()
		if err != nil {
			return netip.Prefix{}, err
		}
		c.pods, err = kube.PodRange(ctx, config, c.node)
		return c.pods, err
	})
	return o, err
}
