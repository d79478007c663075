package iptables

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

// namespaceApplier runs iptables in a network namespace of its own.
type namespaceApplier struct {
	name   string
	prefix string
	most   int
	cpu    time.Duration // of all programs
}

var namespaces int // made so far

func newNamespace(t testing.TB, f service.Family) *namespaceApplier {
	t.Helper()
	kerneltest.NeedRoot(t)
	namespaces++
	n := &namespaceApplier{name: fmt.Sprintf("pwsp-%d-%d", os.Getpid(), namespaces), prefix: "iptables"}
	if f == service.IPv6 {
		n.prefix = "ip6tables"
	}
	if out, err := exec.Command("ip", "netns", "add", n.name).CombinedOutput(); err != nil {
		t.Fatalf("make namespace: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("ip", "netns", "del", n.name).CombinedOutput(); err != nil {
			t.Errorf("remove namespace: %v: %s", err, out)
		}
	})
	return n
}

func (n *namespaceApplier) run(ctx context.Context, input []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.name}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errOut
	err := cmd.Run()
	if cmd.ProcessState != nil {
		n.cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w: %s", args, err, errOut.String())
	}
	return out.Bytes(), nil
}

func (n *namespaceApplier) Restore(ctx context.Context, input []byte) error {
	_, err := n.run(ctx, input, n.prefix+"-restore", "-w", "5", "--noflush", "--counters")
	return err
}

func (n *namespaceApplier) Most(context.Context) int { return n.most }

func (n *namespaceApplier) Save(ctx context.Context, table string) ([]byte, error) {
	return n.run(ctx, nil, n.prefix+"-save", "-t", table)
}

// TestKernelReadsBackToTheLetter loads every scenario and compares what iptables-save prints with what was generated.
func TestKernelReadsBackToTheLetter(t *testing.T) {
	for _, path := range scenarios(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			s := load(t, path)
			s.config.NFAcct = false // the objects would have to be there; agent's tests make them
			kernel := newNamespace(t, s.config.Family)
			syncer, err := NewSyncer(s.config, kernel)
			if err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if _, err := syncer.Sync(ctx, service.Build(s.config.Family, s.node, s.services, s.slices)); err != nil {
				t.Fatal(err)
			}
			now, err := syncer.dump(ctx)
			if err != nil {
				t.Fatal(err)
			}
			syncer.state.each(func(want chainText) {
				if diff := cmp.Diff(want.rules, now[want.chainKey]); diff != "" {
					t.Errorf("%s/%s (-written +read):\n%s", want.table, want.chain, diff)
				}
			})
			if names, err := syncer.Repair(ctx); err != nil || len(names) > 0 {
				t.Errorf("repair of what is whole: %v, %v", names, err)
			}
		})
	}
}
