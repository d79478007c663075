//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/preflight"
)

// readCluster reads a cluster.yaml and checks it for the lab, which may be running; an empty file name is none.
func readCluster(file string, d lab.Dir) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	source, err := limitio.ReadFile(file, lab.MaxClusterFile)
	if err != nil {
		return nil, badInput{err}
	}
	_, err = d.Parse(source)
	var errs cluster.Errors
	switch {
	case errors.As(err, &errs):
		lines := make([]string, len(errs))
		for i, e := range errs {
			lines[i] = file + ": " + e.Error()
		}
		return nil, badInput{errors.New(strings.Join(lines, "\n"))}
	case err != nil:
		return nil, err
	}
	return source, nil
}

func needRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("labs are made of network namespaces, which needs root; run it with sudo")
	}
	return nil
}

// rootFor returns an error that says what a capture needs root for; nil as root.
func rootFor(o captureOptions) error {
	err := needRoot()
	if err != nil && o.here {
		return errors.New("other network namespaces and rules are read by root alone; run it with sudo")
	}
	return err
}

// checkMachine loads the kernel modules that the needs have, and refuses a machine that lacks something, with the rows of doctor.
func checkMachine(ctx context.Context, w io.Writer, needs ...preflight.Need) error {
	if err := needRoot(); err != nil {
		return err
	}
	rows, err := preflight.Check(ctx, needs...)
	if err != nil {
		return err
	}
	var lines []string
	for _, r := range rows {
		if len(r.Loaded) > 0 {
			fmt.Fprintf(w, "loaded the kernel modules %s, for %s\n", strings.Join(r.Loaded, ", "), r.Feature)
		}
		if r.Result != preflight.Works {
			lines = append(lines, r.String())
		}
	}
	if lines != nil {
		return errors.New(strings.Join(append(lines, "nothing was made; 'packetwalk doctor' tries all that packetwalk needs"), "\n"))
	}
	return nil
}
