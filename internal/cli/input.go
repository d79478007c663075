package cli

import (
	"context"
	"errors"
	"os"
	"strings"

	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/cluster"
)

// readCluster reads a cluster.yaml and checks it for the lab, which may be running; an empty file name is none.
func readCluster(file string, d lab.Dir) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	source, err := bounded.ReadFile(file, lab.MaxClusterFile)
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

// checkMachine says everything that this machine lacks for a lab.
func checkMachine(ctx context.Context) error {
	if err := needRoot(); err != nil {
		return err
	}
	var lines []string
	for _, m := range kernel.Check(ctx) {
		lines = append(lines, m.String())
	}
	if err := ctx.Err(); err != nil {
		return err // what was cut off tells nothing of the machine
	}
	if lines != nil {
		return errors.New(strings.Join(lines, "\n"))
	}
	return nil
}
