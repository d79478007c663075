// Package iptablescmd runs iptables' own programs, so that what the kernel holds is what every other user of them sees, whichever variant
// (nft or legacy) the node has.
package iptablescmd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"sync"

	"packetwalk.dev/internal/base/program"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// Programs runs iptables' programs of one family.
type Programs struct {
	Family        service.Family
	restore, save string
	Nested        bool // the process numbers of the kernel's notices are not those that we know

	mu   sync.Mutex
	pids map[int]bool // of the runs of late: the kernel's notices name who made a change
}

// New returns the programs of a variant.
func New(f service.Family, variant string) *Programs {
	const first = "pid:[4026531836]" // PROC_PID_INIT_INO
	namespace, _ := os.Readlink("/proc/self/ns/pid")
	tool := "iptables-"
	if f == service.IPv6 {
		tool = "ip6tables-"
	}
	if variant == VariantDetect {
		variant = detected()
	}
	if variant != VariantInstalled {
		tool += variant + "-"
	}
	return &Programs{Family: f, restore: tool + "restore", save: tool + "save", Nested: namespace != first, pids: map[int]bool{}}
}

// Restore implements iptablesproxy.Tables. It waits up to five seconds for the xtables lock, as kube-proxy does.
func (p *Programs) Restore(ctx context.Context, input []byte) error {
	_, err := p.run(ctx, input, p.restore, "-w", "5", "--noflush", "--counters")
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w%s", err, failedLine(err.Error(), input))
}

// Save implements iptablesproxy.Tables.
func (p *Programs) Save(ctx context.Context, table string) ([]byte, error) {
	return p.run(ctx, nil, p.save, "-t", table)
}

// mostNames: iptables of the nft variant keeps the chains that one run names in a sorted list, through which it goes for each rule.
const mostNames = 1500

// Most implements iptablesproxy.Applier. With the legacy variant each run reads and writes the whole table.
func (p *Programs) Most(ctx context.Context) int {
	version, err := p.run(ctx, nil, p.restore, "--version")
	if err != nil || bytes.Contains(version, []byte("legacy")) {
		return 0
	}
	return mostNames
}

func (p *Programs) run(ctx context.Context, input []byte, name string, args ...string) ([]byte, error) {
	return program.Command{Path: name, Args: args, Stdin: input, Started: p.NoteRun}.Output(ctx)
}

// NoteRun remembers a process for IsOwnChange.
func (p *Programs) NoteRun(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.pids) > 64 {
		clear(p.pids) // a notice comes within moments of its run
	}
	p.pids[pid] = true
}

// IsOwnChange reports whether one of the programs that ran recently made a change, of which the kernel tells the process and the port of its
// netlink socket.
func (p *Programs) IsOwnChange(pid, port int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Nested {
		return p.pids[port]
	}
	return p.pids[pid]
}

// failedLine quotes the line of the input that iptables-restore names in its message, "" if it names none.
func failedLine(message string, input []byte) string {
	_, after, ok := strings.Cut(message, "line ")
	if !ok {
		if _, after, ok = strings.Cut(message, "line: "); !ok {
			return ""
		}
	}
	var number int
	if _, err := fmt.Sscanf(after, "%d", &number); err != nil {
		return ""
	}
	lines := bytes.Split(input, []byte("\n"))
	if number < 1 || number > len(lines) {
		return ""
	}
	return fmt.Sprintf(" (line %d: %s)", number, lines[number-1])
}

// EditNAT changes table nat as edit says, in one transaction, and returns how many rules it wrote. edit gets nil where there is no such
// table.
func EditNAT(ctx context.Context, applier iptablesproxy.Tables, edit func(*iptables.Table) iptables.Edit) (int, error) {
	dump, err := applier.Save(ctx, iptables.NAT)
	if err != nil {
		return 0, err
	}
	tables, err := iptables.Parse(dump)
	if err != nil {
		return 0, fmt.Errorf("read table nat: %w", err)
	}
	var nat *iptables.Table
	for i := range tables {
		if tables[i].Name == iptables.NAT {
			nat = &tables[i]
		}
	}
	e := edit(nat)
	if e.IsZero() {
		return 0, nil
	}
	return e.Rules(), applier.Restore(ctx, iptables.AppendRestore(nil, []iptables.Edit{e}))
}
