package serviceproxy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"packetwalk.dev/internal/node/agent/options"
	iptablesproxy "packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// handOver removes this proxy's rules of each family for which another service proxy's are in force, as the kernel shows.
func (p *Proxy) handOver(ctx context.Context, found []string) {
	for _, f := range p.families {
		if !f.left {
			f.handOver(ctx, found)
		}
	}
}

func (f *family) handOver(ctx context.Context, found []string) {
	has, err := f.hasRules(ctx)
	if err == nil && !has {
		f.left = f.Backend == options.BackendNFTables // the chains of iptables may be in question later
		return
	}
	keep := true
	if err == nil {
		keep, err = f.mustKeep(ctx)
	}
	if err == nil && !keep {
		err = f.removeOwn(ctx)
	}
	f.Faults.Note(fmt.Sprintf("hand the %s rules over", f), err)
	if f.left = err == nil && !keep; f.left {
		f.Logger.Infof("handed the %s rules of Services over to %s and removed packetwalk-node's", f, strings.Join(found, ", "))
	}
}

// hasRules reports whether the family may have rules that are this proxy's alone. Chains of iptables are those of the service proxy that
// runs, except where that has a table of nftables.
func (f *family) hasRules(ctx context.Context) (bool, error) {
	if f.Backend == options.BackendIPTables {
		return nftables.KubeProxyServes(ctx, f.NFTables, f.Family, nil)
	}
	return f.syncer.Canary(ctx)
}

// mustKeep reports whether a service port of the family is reached by this proxy's rules only.
func (f *family) mustKeep(ctx context.Context) (bool, error) {
	ports := slices.DeleteFunc(f.ports.All(), func(p service.Port) bool { return !p.LeadsInside() })
	if len(ports) == 0 {
		return false, nil
	}
	serves, err := nftables.KubeProxyServes(ctx, f.NFTables, f.Family, ports)
	if err != nil || serves || f.Backend == options.BackendIPTables {
		return !serves, err
	}
	nat, err := f.programs.Save(ctx, iptables.NAT)
	if errors.Is(err, exec.ErrNotFound) {
		return true, nil
	}
	return !iptablesproxy.Serves(nat, ports), err
}

// removeOwn removes the rules that the proxy's own backend writes.
func (f *family) removeOwn(ctx context.Context) error {
	err := f.syncer.Remove(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		return withoutIPTables(ctx, f.NFTables, f.Family)
	}
	return err
}
