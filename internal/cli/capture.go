package cli

import (
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/tempfile"
	"packetwalk.dev/internal/base/termsafe"

	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/redact"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/session"
	"packetwalk.dev/internal/writers"
)

// captureOptions are the flags of capture.
type captureOptions struct {
	name, output, kubeconfig string
	here                     bool
	redaction                redaction
}

func captureCommand(s Streams) *cobra.Command {
	var o captureOptions
	c := &cobra.Command{
		Use:   "capture [HOST...] -o FILE [--here] [--kubeconfig FILE] [--redact [--map FILE]]",
		Short: "write the network state of hosts into one file, for 'walk --snapshot'",
		Long: `Write the network state of hosts into one compressed file: links, addresses, routes, rules, sets, connections, settings and sockets as the
machine's own tools print them, and the Kubernetes objects that give addresses their names. 'packetwalk walk --snapshot FILE' walks through it
anywhere. Nothing is changed, and Secrets are never read.

Without --here the hosts are a lab's: all of them, or those named as walk names them (client, vm/vm, pod/NAMESPACE/NAME, deploy/NAME: its first
pod). With --here they are this machine's network namespaces: "node/HOSTNAME" and the pods on it. Of the nodes of a cluster, 'kubectl packetwalk capture' does it.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error { return runCapture(c.Context(), s, o, args) },
	}
	nameFlag(c, &o.name)
	c.ValidArgsFunction = completeBy(openedEnds(func(ctx context.Context) (*session.Session, error) { return session.OpenLab(ctx, o.name) }))
	c.Flags().StringVarP(&o.output, "output", "o", "", `the file to write, NAME.pwcap.tar.gz by custom; "-" is the standard output`)
	c.Flags().BoolVar(&o.here, "here", false, "capture this machine instead of a lab")
	c.Flags().StringVar(&o.kubeconfig, "kubeconfig", "",
		"with --here: where the Kubernetes objects are read (without it: the pod's own service account, if any)")
	o.redaction.flags(c.Flags())
	return c
}

func runCapture(ctx context.Context, s Streams, o captureOptions, hosts []string) error {
	switch {
	case o.output == "":
		return badInput{errors.New("capture needs a file to write: -o NAME.pwcap.tar.gz")}
	case o.here && o.name != "":
		return badInput{errors.New("--here captures this machine and --name a lab; use one of them")}
	case !o.here && o.kubeconfig != "":
		return badInput{errors.New("--kubeconfig goes with --here: a lab has its own")}
	}
	if err := o.redaction.check(o.output); err != nil {
		return badInput{err}
	}
	if err := rootFor(o); err != nil {
		return err
	}
	if err := readable(o); err != nil {
		return badInput{err}
	}
	origin, err := captureOrigin(ctx, o)
	if err != nil {
		return err
	}
	for i, host := range hosts {
		if o.here {
			break
		}
		if hosts[i], err = hostOfEnd(host, labObjects(ctx, o.name)); err != nil {
			return badInput{err}
		}
	}
	names, err := fullNames(origin, hosts, o.here)
	if err != nil {
		return badInput{err}
	}
	return writeCapture(ctx, s, origin, o.output, o.redaction, names)
}

// readable looks at the files that the user named, before anything is captured.
func readable(o captureOptions) error {
	var errs []error
	if o.kubeconfig != "" {
		if _, err := os.Stat(o.kubeconfig); err != nil {
			errs = append(errs, fmt.Errorf("--kubeconfig: %w", err))
		}
	}
	if o.output != "-" {
		if info, err := os.Stat(filepath.Dir(o.output)); err != nil {
			errs = append(errs, fmt.Errorf("-o %s: %w", o.output, err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("-o %s: %s is no folder", o.output, filepath.Dir(o.output)))
		}
	}
	return errors.Join(errs...)
}

func captureOrigin(ctx context.Context, o captureOptions) (capture.Origin, error) {
	if o.here {
		return session.MachineOrigin(ctx, o.kubeconfig)
	}
	origin, err := session.LabOrigin(ctx, o.name)
	if _, ok := errors.AsType[*session.InputError](err); ok {
		err = fmt.Errorf("%w; --here captures this machine itself", err)
	}
	return origin, err
}

// fullNames finds hosts by their names with or without the kind in front; pod/NAME is in namespace default.
func fullNames(o capture.Origin, hosts []string, here bool) ([]string, error) {
	var full []string
	for _, host := range hosts {
		var found []string
		for name := range o.Hosts {
			_, rest, _ := strings.Cut(name, "/")
			switch {
			case name == host:
				found = []string{name}
			case rest == host, strings.HasPrefix(host, "pod/") && name == "pod/default/"+strings.TrimPrefix(host, "pod/"):
				found = append(found, name)
			}
			if name == host {
				break
			}
		}
		slices.Sort(found)
		switch len(found) {
		case 0:
			if here {
				return nil, fmt.Errorf("no host %q on this machine; there are: %s", host, snapshot.List(slices.Collect(maps.Keys(o.Hosts))))
			}
			return nil, fmt.Errorf("no host %q; 'packetwalk status' names them, and pods are pod/NAMESPACE/NAME", host)
		case 1:
			full = append(full, found[0])
		default:
			return nil, fmt.Errorf("host %q can be %s; say which", host, strings.Join(found, " or "))
		}
	}
	return full, nil
}

// writeCapture writes hosts of an origin, or all, to a file that is there when it is whole or not at all, and for its owner only: it tells
// a network's inside. On the standard output, "-", what an error breaks off lacks its end, and no reader takes it.
func writeCapture(ctx context.Context, s Streams, origin capture.Origin, path string, r redaction, hosts []string) error {
	return r.write(func(save func(*redact.Originals) error) error {
		return takeCapture(ctx, s, origin, path, r.on, save, hosts)
	})
}

func takeCapture(
	ctx context.Context, s Streams, origin capture.Origin, path string, redacted bool, save func(*redact.Originals) error, hosts []string,
) error {
	say, out, commit := s.Err, &countingWriter{to: s.Out}, func() error { return nil }
	spool := os.TempDir()
	if path != "-" {
		f, err := atomicfile.Create(path, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		say, out.to, commit, spool = s.Out, f, f.Commit, filepath.Dir(path)
	}
	head := capture.Head{Packetwalk: Version, Taken: time.Now()}
	var taken *capture.Summary
	var err error
	if redacted {
		taken, err = takeRedacted(ctx, origin, out, head, spool, save, hosts)
	} else {
		taken, err = capture.Take(ctx, origin, out, head, hosts...)
	}
	if err != nil {
		return err
	}
	if taken.Nothing {
		return fmt.Errorf("nothing could be captured: %s; it needs root, in a container a privileged one",
			strings.Join(slices.Sorted(maps.Keys(taken.Failed)), "; "))
	}
	if err := commit(); err != nil {
		return err
	}
	printCapture(say, taken, path, out.n)
	return nil
}

// takeRedacted takes a capture into a temporary file in a folder, and redacts that.
func takeRedacted(
	ctx context.Context, o capture.Origin, out io.Writer, h capture.Head, dir string, save func(*redact.Originals) error, hosts []string,
) (*capture.Summary, error) {
	plain, err := tempfile.Create(dir)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	size := countingWriter{to: plain}
	if taken, err := capture.Take(ctx, o, &size, h, hosts...); err != nil || taken.Nothing {
		return taken, err
	}
	file, err := capture.Read(plain, size.n)
	if err != nil {
		return nil, err
	}
	head, origin, originals, err := redact.Capture(file.Head, file.Origin(), writers.Book(&snapshot.Objects{}), redact.NewKey())
	if err != nil {
		return nil, fmt.Errorf("redact: %w", err)
	}
	taken, err := capture.Take(ctx, origin, out, head)
	if err == nil {
		err = save(originals)
	}
	return taken, err
}

// countingWriter counts what goes to a writer.
type countingWriter struct {
	to io.Writer
	n  int64 // bytes
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.to.Write(p)
	c.n += int64(n)
	return n, err
}

func printCapture(w io.Writer, t *capture.Summary, path string, size int64) {
	redacted := ""
	if t.Redacted {
		redacted = ", redacted"
	}
	hosts := "hosts"
	if t.Hosts == 1 {
		hosts = "host"
	}
	fmt.Fprintf(w, "%s: %d %s, %d kB%s\n", path, t.Hosts, hosts, (size+999)/1000, redacted)
	for _, note := range t.Notes {
		fmt.Fprintln(w, "note:", termsafe.Text(note))
	}
	// The same thing is missing on many hosts as a rule: a program.
	for _, what := range slices.Sorted(maps.Keys(t.Failed)) {
		fmt.Fprintf(w, "note: not captured on %d of %d hosts: %s\n", t.Failed[what], t.Hosts, termsafe.Text(what))
	}
}
