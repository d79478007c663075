package oracle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"k8s.io/kubernetes/pkg/proxy/util/nfacct"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/service"
)

// Disagreement is where and how ours and upstream differ.
type Disagreement struct {
	Step int // of the case, from 0
	What string
	Diff string // -upstream +ours; or a proxy's error
}

// String returns the disagreement for people.
func (d *Disagreement) String() string {
	return fmt.Sprintf("step %d, %s (-upstream +ours):\n%s", d.Step, d.What, d.Diff)
}

// Run drives both proxies through a case in both modes, each in a new namespace under dir, and counts what it compares. A nil Disagreement
// says that they agree in every step; an error, that it could not be found out.
func Run(ctx context.Context, dir string, c Case, tally *Tally) (d *Disagreement, err error) {
	p, err := newPair(dir, c.Settings)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	m, err := newTableModes(ctx, dir, c.Settings, tally)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	for i := range c.Steps {
		d, err := p.step(ctx, &c.Steps[i])
		if d == nil && err == nil {
			d, err = m.step(ctx, &c.Steps[i], p.dumps)
		}
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		if d != nil {
			d.Step = i
			return d, nil
		}
	}
	return nil, nil
}

// pair is the iptables mode of both proxies, each with its namespace.
type pair struct {
	settings   Settings
	namespaces [2]*netns.Namespace
	upstream   *upstream
	ours       *ours
	dumps      [][]byte // of upstream's rules, as they were saved last
}

func newPair(dir string, v Settings) (p *pair, err error) {
	p = &pair{settings: v}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	for i, name := range []string{"upstream", "ours"} {
		if p.namespaces[i], err = newNamespace(dir, name, v); err != nil {
			return p, err
		}
	}
	if p.upstream, err = newUpstream(p.namespaces[0], v); err != nil {
		return p, err
	}
	p.ours, err = newOurs(p.namespaces[1], v, counters(p.namespaces[1]))
	return p, err
}

// newNamespace makes one with the node's addresses.
func newNamespace(dir, name string, v Settings) (*netns.Namespace, error) {
	ns, err := netns.Create(filepath.Join(dir, name))
	if err != nil {
		return nil, err
	}
	for _, address := range v.NodeAddresses {
		command := exec.Command("ip", "address", "add", address, "dev", "lo", "nodad")
		if !strings.Contains(address, ":") {
			command.Args = command.Args[:len(command.Args)-1]
		}
		var words strings.Builder
		command.Stderr = &words
		if err := ns.Do(command.Run); err != nil {
			return nil, errors.Join(fmt.Errorf("add %s: %w: %s", address, err, words.String()), ns.Remove())
		}
	}
	return ns, nil
}

// counters makes the accounting objects of today's rules, as our agent does before it starts, and reports whether the kernel has any.
func counters(ns *netns.Namespace) bool {
	return ns.Do(func() error {
		accounting, err := nfacct.New()
		if err != nil {
			return err
		}
		for _, name := range iptables.CounterNames() {
			if err := accounting.Ensure(name); err != nil {
				return err
			}
		}
		return nil
	}) == nil
}

func (p *pair) close() error {
	var errs []error
	if p.upstream != nil {
		errs = append(errs, p.upstream.stop())
	}
	for _, ns := range p.namespaces {
		if ns != nil {
			errs = append(errs, ns.Remove())
		}
	}
	return errors.Join(errs...)
}

// step brings both to a world and compares; then, if the world says so, makes both write everything anew and compares with what was there.
func (p *pair) step(ctx context.Context, w *World) (*Disagreement, error) {
	err := both(func() error { return p.upstream.sync(*w) }, func() error { return p.ours.sync(ctx, *w) })
	if err != nil {
		return &Disagreement{What: "sync", Diff: err.Error()}, nil
	}
	theirs, our, err := p.save(ctx)
	if err != nil {
		return nil, err
	}
	if text := diff(theirs, our); text != "" {
		return &Disagreement{What: "rules", Diff: text}, nil
	}
	if text := p.health(ctx); text != "" {
		return &Disagreement{What: "health checks", Diff: text}, nil
	}
	if !w.Full {
		return nil, nil
	}
	if err := p.ours.repair(ctx); err != nil {
		return &Disagreement{What: "repair", Diff: err.Error()}, nil
	}
	if err := both(p.upstream.rewrite, func() error { return p.ours.rewrite(ctx) }); err != nil {
		return &Disagreement{What: "full sync", Diff: err.Error()}, nil
	}
	theirsAgain, ourAgain, err := p.save(ctx)
	if err != nil {
		return nil, err
	}
	if text := diff(our, ourAgain); text != "" {
		return &Disagreement{What: "our rules before a full sync and after it", Diff: text}, nil
	}
	if text := diff(theirsAgain, ourAgain); text != "" {
		return &Disagreement{What: "rules after a full sync", Diff: text}, nil
	}
	return nil, nil
}

// both runs the two sides at the same time.
func both(theirs, our func() error) error {
	var wait sync.WaitGroup
	var errs [2]error
	wait.Go(func() { errs[0] = theirs() })
	wait.Go(func() { errs[1] = our() })
	wait.Wait()
	return errors.Join(errs[:]...)
}

// save reads the tables in which service proxies write.
func (p *pair) save(ctx context.Context) (theirs, our savedRules, err error) {
	var out [2]savedRules
	var raw [2][][]byte
	read := func(i int) func() error {
		return func() error {
			for _, table := range []string{"filter", "mangle", "nat"} {
				dump, err := newPrograms(p.namespaces[i], p.settings).Save(ctx, table)
				if err != nil {
					return err
				}
				raw[i] = append(raw[i], dump)
			}
			out[i], err = parseSaved(raw[i]...)
			return err
		}
	}
	err = both(read(0), read(1))
	p.dumps = raw[0]
	return out[0], out[1], err
}

// health compares what upstream's health check node ports answer with what ours would, "" for the same.
func (p *pair) health(ctx context.Context) string {
	ip := "127.0.0.1"
	if p.settings.IPv6 {
		ip = "::1"
	}
	if wanted, _ := nodePortRanges(p.settings); wanted != nil {
		return "" // upstream listens on the chosen addresses only
	}
	for _, check := range service.HealthChecks(p.ours.now) {
		address := net.JoinHostPort(ip, strconv.Itoa(int(check.Port)))
		theirs, err := p.upstream.health(ctx, address)
		if err != nil {
			return fmt.Sprintf("- %s: %v\n+ %s: %d local endpoints", address, err, check.Key, check.LocalEndpoints)
		}
		if theirs != strconv.Itoa(check.LocalEndpoints) {
			return fmt.Sprintf("- %s port %d: %s local endpoints\n+ %d", check.Key, check.Port, theirs, check.LocalEndpoints)
		}
	}
	return ""
}
