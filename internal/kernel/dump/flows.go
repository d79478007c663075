package dump

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
)

// flowsFile is what conntrack -L -o extended prints, for kernels that have it (CONFIG_NF_CONNTRACK_PROCFS).
const flowsFile = "/proc/thread-self/net/nf_conntrack"

// maxFlows bounds the text of a namespace's connections, in bytes: of a million it is 200 MB.
const maxFlows = 256 << 20

// flows lists connections by the row's program, or where nothing answers that, or there is none, by the kernel's file.
func (d *Dumper) flows(ctx context.Context, ns *netns.Namespace, row capture.Dump, m *modules) capture.Output {
	if _, err := ns.CountFlows(); errors.Is(err, fs.ErrNotExist) {
		return capture.Output{Skipped: "the kernel does not have nf_conntrack (its module is not loaded)"}
	}
	out := d.command(ctx, ns, row, m)
	if out.Error == "" && out.Skipped == "" {
		return out
	}
	var text []byte
	err := ns.Do(func() (err error) {
		text, err = limitio.ReadFile(flowsFile, maxFlows)
		return err
	})
	if err != nil {
		why := strings.TrimSpace(out.Error + out.Skipped)
		return capture.Output{Command: strings.Join(row.Commands[0], " "), Error: why + "; " + err.Error()}
	}
	family := row.Commands[0][slices.Index(row.Commands[0], "-f")+1]
	return capture.Output{Data: ofFamily(text, family)}
}

// ofFamily returns the lines of connections of "ipv4" or "ipv6".
func ofFamily(text []byte, family string) []byte {
	var lines []byte
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte(family+" ")) {
			lines = append(lines, line...)
		}
	}
	return lines
}

// noBridgeRules returns why ebtables' legacy tables are not asked for, "" where they are. To ask makes a table in a namespace that has none
// (net/bridge/netfilter/ebtables.c: find_table_lock, since Linux 5.15), so that is done only where there is a bridge that rules could be
// for, and somewhere on the machine are rules: then a table's module is in use (do_replace_finish).
func noBridgeRules(ns *netns.Namespace, modules string) (why string, err error) {
	h, err := ns.Handle()
	if err != nil {
		return "", err
	}
	links, err := h.LinkList()
	if err != nil {
		return "", err
	}
	bridge := false
	for _, l := range links {
		bridge = bridge || l.Type() == "bridge"
	}
	if !bridge {
		return "the namespace has no bridge", nil
	}
	counts, err := filepath.Glob(modules + "/ebtable_*/refcnt")
	for _, path := range counts {
		if !isUnused(path) {
			return "", nil
		}
	}
	if len(counts) == 0 {
		return "", err // built in: nothing tells
	}
	return "no table of ebtables has rules", nil
}

// isUnused reports whether a module's count of users is known to be zero.
func isUnused(path string) bool {
	text, err := os.ReadFile(path)
	return err == nil && string(bytes.TrimSpace(text)) == "0"
}
