package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"packetwalk.dev/internal/base/knownhole"
	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/preflight"
)

// maxBaseAge is how old the choice of Debian's packages of nodes may be before doctor says so.
const maxBaseAge = 90 * 24 * time.Hour

// ProgramRows returns rows about the programs that nodes run: whether they have known holes, and how old Debian's packages are. It returns
// none where this program has no labs' programs beside it, as on a workstation.
func ProgramRows(now time.Time) []preflight.Row {
	b, err := FindBinaries()
	if err != nil {
		return nil
	}
	return programRows(b, now)
}

func programRows(b layout.Binaries, now time.Time) []preflight.Row {
	row := func(feature string, need preflight.Need, err error) preflight.Row {
		r := preflight.Row{Feature: feature, NeededFor: []preflight.Need{need}, Result: preflight.Works}
		if err != nil {
			r.Result, r.Cause = preflight.Missing, strings.ReplaceAll(err.Error(), "\n", "; ")
			r.Remedy = "take a newer packetwalk, or 'make lock controlplane build' in its checkout"
		}
		return r
	}
	var holes []error
	for _, name := range []string{"runc", "containerd", "containerd-shim-runc-v2"} {
		err := knownhole.OfProgram(filepath.Join(b.RealNode, name))
		if !errors.Is(err, fs.ErrNotExist) { // labs say so themselves
			holes = append(holes, err)
		}
	}
	return []preflight.Row{
		row("no known holes in containerd and runc", preflight.Lab, errors.Join(holes...)),
		row("recent packages of Debian", preflight.Fixes, checkBase(b.Base, now)),
	}
}

// lockedFile has the day on which the versions of a base's packages were chosen.
const lockedFile = "locked"

// checkBase refuses packages of Debian that were chosen long ago.
func checkBase(dir string, now time.Time) error {
	text, err := limitio.ReadFile(filepath.Join(dir, lockedFile), 1<<10)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s does not say when its packages were chosen", dir)
	}
	if err != nil {
		return err
	}
	chosen, err := time.Parse(time.DateOnly, strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, lockedFile), err)
	}
	if now.Sub(chosen) > maxBaseAge {
		return fmt.Errorf("the packages of nodes were chosen on %s, more than %d days ago: Debian has closed holes since", chosen.Format(time.DateOnly),
			maxBaseAge/(24*time.Hour))
	}
	return nil
}
