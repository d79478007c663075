package cli

import (
	"errors"
	"os"
	"strings"

	"packetwalk.dev/internal/app"
	"packetwalk.dev/internal/cluster"
	"packetwalk.dev/internal/kernel"
)

// readCluster reads and checks a cluster.yaml; an empty file name is none.
func readCluster(file string) ([]byte, error) {
	if file == "" {
		return nil, nil
	}
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, badInput{err}
	}
	if _, errs := cluster.Parse(source, app.Names()...); len(errs) > 0 {
		lines := make([]string, len(errs))
		for i, e := range errs {
			lines[i] = file + ": " + e.Error()
		}
		return nil, badInput{errors.New(strings.Join(lines, "\n"))}
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
func checkMachine() error {
	if err := needRoot(); err != nil {
		return err
	}
	var lines []string
	for _, m := range kernel.Check() {
		lines = append(lines, m.String())
	}
	if lines != nil {
		return errors.New(strings.Join(lines, "\n"))
	}
	return nil
}
