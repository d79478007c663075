// Package mounts reads what is mounted (proc_pid_mountinfo(5)).
package mounts

import (
	"bytes"
	"context"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Mount is a line of mountinfo.
type Mount struct {
	Point   string // where it is, as the process sees it
	Type    string // of the file system
	Options string // the superblock's, separated by commas
}

// Own returns the calling process's.
func Own() ([]Mount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return slices.Collect(Parse(string(text))), nil
}

// unescape undoes what the kernel does to names: blanks, tabs, ends of lines and backslashes as octal numbers.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// Parse reads mountinfo; what is no such line is passed over.
func Parse(text string) iter.Seq[Mount] {
	return func(yield func(Mount) bool) {
		for line := range strings.Lines(text) {
			before, after, ok := strings.Cut(line, " - ")
			fields, rest := strings.Fields(before), strings.Fields(after)
			if !ok || len(fields) < 5 || len(rest) < 3 {
				continue
			}
			if !yield(Mount{Point: unescape.Replace(fields[4]), Type: rest[0], Options: rest[2]}) {
				return
			}
		}
	}
}

// Named returns those of directories that are mounted, or are layers of an overlay, in the mount namespace of any thread of the machine.
// They go by their last elements, whose names are like no others: how a mount was told of them, whole or from a directory, makes no
// difference.
func Named(ctx context.Context, dirs []string) ([]string, error) {
	threads, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	busy := map[string]bool{}
	for _, p := range threads {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		namespace, err := os.Readlink(p + "/ns/mnt")
		root, err2 := os.Readlink(p + "/root")
		view := namespace + root
		if err != nil || err2 != nil || seen[view] {
			continue // it has ended, or shows what another did
		}
		text, err := os.ReadFile(p + "/mountinfo")
		if err != nil {
			continue
		}
		seen[view] = true
		for line := range bytes.Lines(text) {
			for _, d := range dirs {
				busy[d] = busy[d] || bytes.Contains(line, []byte(filepath.Base(d)))
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(dirs), func(d string) bool { return !busy[d] }), nil
}
