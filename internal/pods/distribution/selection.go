package distribution

import (
	"context"
	"fmt"
	"os"
	"slices"
)

// A Selection is the packages of a machine that containers have.
type Selection struct {
	// Missing are those of the list that are not installed, by name.
	Missing []string

	machine string
	chosen  []debian
}

// Select chooses the packages of a part on the machine with a root directory. An error is that of a machine without dpkg or bash.
func Select(ctx context.Context, machine string, part Part) (Selection, error) {
	all, err := installed(ctx, machine)
	if err != nil {
		return Selection{}, err
	}
	s := Selection{machine: machine}
	s.chosen, s.Missing = part.closure(all)
	for _, name := range required {
		if slices.Contains(s.Missing, name) {
			return Selection{}, fmt.Errorf("the package %s is not installed: apt-get install %s", name, name)
		}
	}
	return s, nil
}

// Key names what Assemble makes: other packages, or other versions of them, have another one.
func (s *Selection) Key() string { return key(s.chosen) }

// Assemble makes a directory of the packages' files, which takes a second or so; there is none of that name yet. missing are the files
// that the machine does not have as the package brought them, by absolute path. An error is that of a full disk, of a machine whose shell
// would not run, or that ctx has ended.
func (s *Selection) Assemble(ctx context.Context, dir string) (missing []string, err error) {
	machine, err := os.OpenRoot(s.machine)
	if err != nil {
		return nil, err
	}
	defer machine.Close()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	layer, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer layer.Close()
	if err := layer.Chmod(".", 0o755); err != nil { // whatever the umask
		return nil, err
	}
	if missing, err = assemble(ctx, machine, layer, s.chosen); err != nil {
		return nil, fmt.Errorf("assemble containers' programs from this machine's packages: %w", err)
	}
	return missing, nil
}
