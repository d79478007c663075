package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/session"
	"packetwalk.dev/internal/usercluster"
	"packetwalk.dev/internal/usercluster/remote"
)

// The names by which kubectl calls its plugins, and what completes their arguments (kubectl: "plugin" and "completion").
const (
	pluginName   = "kubectl-packetwalk"
	completeName = "kubectl_complete-packetwalk"
)

// pluginOptions are the flags of all commands of the plugin.
type pluginOptions struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
	pods      usercluster.Options
	dryRun    bool
}

// PluginMain runs one command line of kubectl's plugin and returns its exit status. program is the name that it was called by.
func PluginMain(program string, args []string, s Streams) int {
	if programName(program) == completeName {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	// Who reads the output may go, and what was made on the cluster is to be taken away all the same.
	signal.Ignore(syscall.SIGPIPE)
	return execute(pluginCommand(s), args, s)
}

// IsPlugin reports whether the program was called as kubectl's plugin.
func IsPlugin(program string) bool {
	name := programName(program)
	return name == pluginName || name == completeName
}

// programName returns the name that a program was called by, on Windows without its ending.
func programName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".exe") }

func pluginCommand(s Streams) *cobra.Command {
	o := &pluginOptions{rules: clientcmd.NewDefaultClientConfigLoadingRules(), pods: usercluster.Options{Version: Version}}
	root := &cobra.Command{
		Use:   pluginName,
		Short: "where the packets of a cluster go, and which rule decides",
		Long: `Walks a packet through a cluster. Prints which source address the destination sees, and which rule decides it.

It reads the nodes that the packet reaches. On each it starts one short-lived privileged pod, in a new namespace or in that of an
administrator, and removes what it created at the end. It changes nothing else. docs/plugin.md says what it creates, what it reads and what it cannot see.`,
		Example: `  kubectl packetwalk walk --from pod/shop/web-1 --to 203.0.113.9:443
  kubectl packetwalk walk --from svc/web --to svc/kube-system/kube-dns:53 --proto udp --live
  kubectl packetwalk capture --all-nodes -o cluster.pwcap.tar.gz`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl packetwalk"},
		Version:       Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.CompletionOptions.HiddenDefaultCmd = true
	f := root.PersistentFlags()
	f.StringVar(&o.rules.ExplicitPath, "kubeconfig", "", "the kubeconfig file (without it: $KUBECONFIG, or ~/.kube/config)")
	clientcmd.BindOverrideFlags(&o.overrides, f, clientcmd.RecommendedConfigOverrideFlags(""))
	f.VisitAll(func(flag *pflag.Flag) { flag.Hidden = !slices.Contains(shownFlags, flag.Name) })
	f.StringVar(&o.pods.Image, "image", os.Getenv(imageVariable), "the image of the pods on the nodes (without it: $"+imageVariable+
		", or that of the release)")
	f.StringVar(&o.pods.PullSecret, "image-pull-secret", "", "a Secret of the namespace packetwalk that rbac makes, with which it is pulled")
	f.BoolVar(&o.pods.Kept, "kept-namespace", false, "start the pods in the namespace packetwalk that rbac makes, also with the right to make one")
	boundedDuration(f, &o.pods.Start, "start-timeout", time.Minute, time.Second, usercluster.MostStart, "how long a node's pod may take to run")
	f.BoolVar(&o.dryRun, "dry-run", false, "print what would be made on the cluster, and make nothing")
	root.AddCommand(pluginWalkCommand(s, o), pluginUICommand(s, o), pluginMCPCommand(s, o), pluginCaptureCommand(s, o), pluginPortsCommand(s, o),
		rbacCommand(s), cleanupCommand(s, o), versionCommand(s))
	addNodeCommand(root, s)
	addHelp(root)
	wrapHelp(root)
	return root
}

// shownFlags are those of kubectl's flags that the help names; the others are taken all the same.
var shownFlags = []string{"kubeconfig", "context", "namespace", "as"}

// open opens the cluster that the flags choose. namespace is the one that names without any are in.
// With pods it is to run some on nodes.
func (o *pluginOptions) open(ctx context.Context, pods bool) (opened *session.Session, namespace string, err error) {
	c, namespace, err := o.cluster()
	if err == nil && pods {
		err = o.checkImage()
	}
	if err != nil {
		return nil, "", err
	}
	opened, err = session.OpenCluster(ctx, c)
	return opened, namespace, err
}

// imageVariable is the environment variable for --image.
const imageVariable = "PACKETWALK_IMAGE"

// checkImage refuses a run on nodes whose image no release has fixed by its digest: a registry could serve anything for a tag.
func (o *pluginOptions) checkImage() error {
	if o.pods.Image != "" || imageref.Digest != "" {
		return nil
	}
	return badInput{fmt.Errorf("this build of the plugin is not a release, so no image of its programs is published: push one with "+
		"'make image PUSH=REPOSITORY', and name it with --image REPOSITORY:%s or $%s", imageref.Tag(Version), imageVariable)}
}

// cluster prepares a run on the cluster that the flags choose.
func (o *pluginOptions) cluster() (c *usercluster.Cluster, namespace string, err error) {
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.rules, &o.overrides)
	namespace, _, err = config.Namespace()
	var server *rest.Config
	if err == nil {
		server, err = config.ClientConfig()
	}
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, "", badInput{fmt.Errorf("no cluster is configured in %s: name a kubeconfig file with --kubeconfig, or in $KUBECONFIG",
			strings.Join(o.rules.GetLoadingPrecedence(), ", "))}
	case err != nil:
		return nil, "", badInput{err}
	}
	c, err = usercluster.Open(server, o.pods)
	return c, namespace, err
}

func pluginCaptureCommand(s Streams, o *pluginOptions) *cobra.Command {
	var output string
	var all bool
	var redacted redaction
	c := &cobra.Command{
		Use:   "capture [NODE...] -o FILE [--all-nodes] [--redact [--map FILE]]",
		Short: "write the network state of nodes into one file, for 'packetwalk walk --snapshot'",
		Long: `Write the network state of nodes, and of all pods on them, into one compressed file, which only you can read. 'packetwalk walk --snapshot FILE'
walks through it anywhere. Secrets are never read.`,
		RunE: func(c *cobra.Command, nodes []string) (err error) {
			switch {
			case output == "":
				return badInput{errors.New("capture needs a file to write: -o NAME.pwcap.tar.gz")}
			case all == (len(nodes) > 0):
				return badInput{errors.New("name the nodes to capture, or --all-nodes")}
			}
			if err := errors.Join(redacted.check(output), readable(captureOptions{output: output})); err != nil {
				return badInput{err}
			}
			return o.capture(c.Context(), s, nodes, output, redacted)
		},
		ValidArgsFunction: o.complete(func(s *session.Session) []string { return s.Cluster.Nodes() }),
	}
	c.Flags().StringVarP(&output, "output", "o", "", `the file to write, NAME.pwcap.tar.gz by custom; "-" is the standard output`)
	c.Flags().BoolVar(&all, "all-nodes", false, "capture all nodes")
	redacted.flags(c.Flags())
	return c
}

func (o *pluginOptions) capture(ctx context.Context, s Streams, nodes []string, output string, redacted redaction) (err error) {
	opened, _, err := o.open(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = closeSession(ctx, s, opened, err) }()
	there := opened.Cluster.Nodes()
	for i, name := range nodes {
		nodes[i] = strings.TrimPrefix(name, "node/")
		if !slices.Contains(there, nodes[i]) {
			return badInput{fmt.Errorf("no node %q that can be read; there are: %s", nodes[i], strings.Join(there, ", "))}
		}
	}
	named := len(nodes) > 0
	if !named {
		nodes = there
	}
	if o.dryRun {
		return printObjects(s.Out, usercluster.Plan(o.pods.ForCapture(len(nodes)), nodes...))
	}
	printNotes(s, opened.Cluster.UnreadNodes()...)
	started, missed := opened.Cluster.Start(ctx, nodes)
	if missed != nil && (named || len(started) == 0) {
		return missed
	}
	nodes = started
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	origin := opened.Cluster.Origin(nodes...)
	fetch := origin.Fetch
	origin.Fetch = func(host string) (*capture.Raw, error) {
		raw, err := fetch(host)
		if err != nil && !remote.Told(err) {
			giveUp(err) // half a node would look like a whole one
		}
		return raw, err
	}
	err = writeCapture(ctx, s, origin, output, redacted, nil)
	if lost := context.Cause(ctx); err != nil && lost != nil && !errors.Is(lost, context.Canceled) {
		return lost
	}
	return errors.Join(err, missed)
}

func rbacCommand(s Streams) *cobra.Command {
	var configMaps []string
	c := &cobra.Command{
		Use:   "rbac",
		Short: "print the least rights, as an administrator can give them",
		Long: `Prints the namespace and the roles that an administrator makes, and binds to the plugin's users. A user who can create privileged
pods controls the nodes: bind the roles only to users who may do that.`,
		Args: noArguments("it asks for none"),
		RunE: func(*cobra.Command, []string) error { return printObjects(s.Out, usercluster.Rights(configMaps...)) },
	}
	c.Flags().StringSliceVar(&configMaps, "ip-masq-configmaps", nil, "more ConfigMaps of kube-system that an ip-masq-agent reads, by commas")
	return c
}

func cleanupCommand(s Streams, o *pluginOptions) *cobra.Command {
	var age time.Duration
	c := &cobra.Command{
		Use:   "cleanup [--older-than DURATION] [--dry-run]",
		Short: "take away what a run that was cut off has left",
		Args:  noArguments("it takes away everything of packetwalk's"),
		RunE: func(c *cobra.Command, _ []string) error {
			run, _, err := o.cluster()
			if err != nil {
				return err
			}
			gone, err := run.Cleanup(c.Context(), usercluster.CleanupOptions{OlderThan: age, DryRun: o.dryRun})
			done := "deleted"
			if o.dryRun {
				done = "deleted (dry run)"
			}
			for _, what := range gone {
				fmt.Fprintln(s.Out, termsafe.Text(what), done)
			}
			if err == nil && len(gone) == 0 {
				fmt.Fprintln(s.Out, "nothing to delete")
			}
			return err
		},
	}
	const longest = 10 * 365 * 24 * time.Hour
	boundedDuration(c.Flags(), &age, "older-than", 0, 0, longest, "only what was made longer ago, such as 30m; runs that still go on end without it")
	return c
}

// printObjects prints objects as YAML documents.
func printObjects[T any](w io.Writer, objects []T) error {
	for i, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		lines := slices.DeleteFunc(strings.SplitAfter(string(text), "\n"), func(line string) bool {
			return line == "status: {}\n" || line == "spec: {}\n" || strings.TrimSpace(line) == "creationTimestamp: null"
		})
		if _, err := io.WriteString(w, strings.Join(lines, "")); err != nil {
			return err
		}
	}
	return nil
}

// printNotes prints lines to standard error.
func printNotes(s Streams, lines ...string) {
	for _, line := range lines {
		fmt.Fprintln(s.Err, "packetwalk:", termsafe.Text(line))
	}
}

// completionTime bounds how long the user waits for a completion.
const completionTime = 3 * time.Second

// complete completes by the cluster's objects.
func (o *pluginOptions) complete(names func(*session.Session) []string) cobra.CompletionFunc {
	return completeBy(func(ctx context.Context, _ []string) ([]string, error) {
		opened, _, err := o.open(ctx, false)
		if err != nil {
			return nil, err
		}
		return names(opened), nil
	})
}
