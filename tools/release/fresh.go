package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/mod/modfile"

	"packetwalk.dev/internal/base/knownhole"
)

// locks are the files that name versions of Debian's packages, and the command that renews each.
var locks = map[string]string{"tools/image/packages.lock": "make image LOCK=update", "scripts/base.lock": "make lock"}

// maxLockAge is how old a release's lock may be. Debian publishes fixes of security holes each week.
const maxLockAge = 30 * 24 * time.Hour

var lockedOn = regexp.MustCompile(`(?m)^# .*locked on (\d{4}-\d\d-\d\d)$`)

// checkFresh refuses a release with packages of Debian that were chosen long ago, or with programs of upstream's that have known holes. root
// is the checkout.
func checkFresh(root string, now time.Time) error {
	var all []error
	for file, remedy := range locks {
		all = append(all, checkLock(filepath.Join(root, file), remedy, now))
	}
	modules, err := filepath.Glob(filepath.Join(root, "controlplane", "*", "go.mod"))
	if err != nil || len(modules) == 0 {
		return fmt.Errorf("find upstream's versions below %s: %w", root, errors.Join(err, os.ErrNotExist))
	}
	for _, file := range append(modules, filepath.Join(root, "controlplane", "go.mod")) {
		all = append(all, checkModule(file))
	}
	return errors.Join(all...)
}

// checkLock refuses a lock of which a part has no date or an old one.
func checkLock(file, remedy string, now time.Time) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	dates := lockedOn.FindAllSubmatch(text, -1)
	if len(dates) == 0 {
		return fmt.Errorf("%s does not say when it was made; run %q", file, remedy)
	}
	for _, m := range dates {
		made, err := time.Parse(time.DateOnly, string(m[1]))
		if err != nil {
			return fmt.Errorf("%s: %w; run %q", file, err, remedy)
		}
		if days := int(now.Sub(made) / (24 * time.Hour)); now.Sub(made) > maxLockAge {
			return fmt.Errorf("%s is %d days old, and may be %d; run %q", file, days, maxLockAge/(24*time.Hour), remedy)
		}
	}
	return nil
}

// checkModule refuses a go.mod that requires a version with known holes.
func checkModule(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	parsed, err := modfile.Parse(file, text, nil)
	if err != nil {
		return err
	}
	for _, r := range parsed.Require {
		if err := knownhole.Of(r.Mod.Path, r.Mod.Version); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}
