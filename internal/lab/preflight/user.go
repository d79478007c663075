package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
)

// Without root most features can be tried in a user namespace. This program runs itself in one, by unshare(1), and reads the rows of that
// run. No modules are loaded there.

const tryAsRoot = "run it with sudo"

// Diagnose does what Check does for callers with or without root. inside is the command line of this program that runs [Inside].
func Diagnose(ctx context.Context, inside []string, needs ...Need) ([]Row, error) {
	if os.Geteuid() == 0 {
		return Check(ctx, needs...)
	}
	args := append([]string{"--user", "--map-root-user", "--mount", "--net", "--"}, inside...)
	out, err := program.Command{Path: "unshare", Args: args}.Output(ctx)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var rows []Row
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	if err != nil {
		m, failed := newMachine()
		if failed != nil {
			return nil, failed
		}
		rows = m.untried(err)
	}
	return slices.DeleteFunc(rows, func(r Row) bool {
		return !slices.ContainsFunc(r.NeededFor, func(n Need) bool { return slices.Contains(needs, n) })
	}), nil
}

// Inside tries all features from inside a user namespace.
func Inside(ctx context.Context) ([]Row, error) {
	m, err := newMachine()
	if err != nil {
		return nil, err
	}
	m.user = true
	return m.check(ctx, allNeeds), ctx.Err()
}

// untried returns the rows where no user namespace can be made: programs are found, and nothing else is known.
func (m *machine) untried(err error) []Row {
	m.user = true
	m.tryAll = func(_ context.Context, features []feature) map[string]error {
		failed := map[string]error{}
		for _, f := range features {
			if f.call != nil || f.input != "" {
				failed[f.name] = fmt.Errorf("%w: no user namespace: %w", unix.EPERM, err)
			}
		}
		return failed
	}
	return m.check(context.Background(), allNeeds)
}

// userRow changes the row of a feature that root might have tried with more success. failed is nil where it works, or was not tried.
func (m *machine) userRow(f *feature, failed error, r Row) Row {
	switch {
	case f.root:
		r.Result, r.Cause, r.Remedy = NeedsRoot, "it does not work in a user namespace", tryAsRoot
	case failed == nil:
	case errors.Is(failed, fs.ErrPermission) || strings.Contains(strings.ToLower(failed.Error()), "not permitted"):
		r.Result, r.Remedy = NeedsRoot, tryAsRoot
	case len(f.modules) > 0:
		if err := m.blocked(strings.Join(f.modules, ", ")); err != nil {
			r.Remedy = oneLine(err)
			return r
		}
		for _, module := range f.modules {
			if !m.hasFile(module) {
				r.Remedy = m.packageOf(module)
				return r
			}
		}
		r.Result, r.Remedy = NeedsRoot, tryAsRoot+", which loads "+strings.Join(f.modules, ", ")
	}
	return r
}
