// Command e2e (tools/e2e) runs Kubernetes' own end-to-end tests, upstream's programs as `tools/controlplane build e2e` makes them, against
// a lab of its own, which it takes down again, however it ends. It follows the suite a line a spec, prints a table of the results, leaves
// JUnit and the whole log in bin/e2e/report, and writes its section of docs/dev/conformance.md. It is run as root, in the repository.
//
// It ends with status 1 when a spec failed that controlplane/e2e/causes.yaml has no cause for, when one passed that it has a cause for, or
// when the suite did not come to its end. It drives programs by their command lines and imports
// nothing internal but base/termsafe and pods.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// folders and files of the repository, in which this is run.
const (
	bin        = "bin"
	report     = "bin/e2e/report"
	causesFile = "controlplane/e2e/causes.yaml"
)

type options struct {
	focus, skip string // regular expressions of specs' names, as ginkgo takes them
	nodes       int
	network     string // one of networks
	page        string // the file with the results' sections; "" for none
	procs       int    // specs at the same time
	limit       time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.focus, "focus", `\[sig-network\].*\[Conformance\]`, "`RE`: the specs that run; or beyond: those of the network beyond Conformance; or policies: Netpol")
	flag.StringVar(&o.skip, "skip", "", "`RE`: specs of those that do not run")
	flag.IntVar(&o.nodes, "nodes", 3, "nodes of the lab")
	flag.StringVar(&o.network, "network", "overlay", "the pods' network: overlay, bridge or transparent (Azure CNI's modes), calico (transparent, with its policies), or kubenet")
	flag.StringVar(&o.page, "page", "docs/dev/conformance.md", "the `file` that gets a section with the results, where the specs are a whole group's")
	flag.IntVar(&o.procs, "procs", 8, "specs that run at the same time")
	flag.DurationVar(&o.limit, "limit", time.Hour, "how long the suite may take")
	flag.Parse()
	if s, ok := selections[o.focus]; ok {
		o.focus, o.skip = s.focus, s.skip
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	known, err := readCauses(causesFile)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(report); err != nil {
		return err
	}
	if err := os.MkdirAll(report, 0o755); err != nil {
		return err
	}
	l := lab{name: fmt.Sprintf("e2e-%d", os.Getpid()), log: filepath.Join(report, "suite.log")}
	// Not ended by Ctrl-C: what was begun is taken away.
	defer func() { err = errors.Join(err, l.down(context.WithoutCancel(ctx))) }()
	if err := loadImages(ctx); err != nil {
		return fmt.Errorf("make the suite's images: %w", err)
	}
	if err := l.up(ctx, o); err != nil {
		return err
	}
	if err := l.suite(ctx, o, os.Stdout); err != nil {
		return err
	}
	r, err := readResults(filepath.Join(report, "junit_01.xml"))
	if err != nil {
		return err
	}
	r.table(os.Stdout, known)
	if len(r.stopped) > 0 {
		return fmt.Errorf("the suite did not come to its end: %s; its log is %s", r.stopped, l.log)
	}
	if err := writePage(ctx, o, r, known); err != nil {
		return err
	}
	return r.judge(known)
}
