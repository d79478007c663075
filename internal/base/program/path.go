// Package program runs the programs of others (nft, iptables-restore, ip, a CNI plugin) to their end for an answer: the only place of ours
// that does, so that none can hang its caller, or outlive it. What starts processes for something else does so itself, and is on the list
// of TestElsewhere: base/supervise and lab (what goes on without us), pods/container and pods/app (containers' processes), cli (the user's
// shell) and tour (the commands of a page).
package program

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Path is the default search path of programs: the $PATH of root's shell on Debian.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// AddSystemPath adds the directories of Path that $PATH lacks, at its end. Users' $PATH often lacks /usr/sbin, where nft, mkfs.ext4 and
// others are. On Windows it does nothing.
func AddSystemPath() error {
	if runtime.GOOS == "windows" {
		return nil
	}
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, dir := range filepath.SplitList(Path) {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return os.Setenv("PATH", strings.Join(dirs, string(filepath.ListSeparator)))
}

// Limit is how long a program may take whose Command has no limit of its own. The longest that we know of is an iptables-restore of
// 100,000 rules on a busy machine.
const Limit = 2 * time.Minute
