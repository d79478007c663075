package agent

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// RemoveRules removes the rules that packetwalk-nodes left on this node: those of Services, the chain IP-MASQ-AGENT and kubenet's rule.
// Rules that another program has taken over stay, and the log names it. It fails while a packetwalk-node runs.
func RemoveRules(ctx context.Context, o Options, log func(format string, args ...any)) error {
	for _, role := range []string{conflict.ServiceProxy, conflict.MasqAgent} {
		if err := conflict.Take(role); errors.Is(err, conflict.ErrTaken) {
			return fmt.Errorf("packetwalk-node runs on this node (%s); delete its DaemonSet first", role)
		} else if err != nil {
			return err
		}
	}
	proxies, err := conflict.ServiceProxies(ctx)
	if err != nil {
		return err
	}
	agents, err := conflict.MasqAgents()
	if err != nil {
		return err
	}
	o.Backend = BackendNFTables // of which there may be rules of both families, whether iptables is installed or not
	var errs []error
	rules := nftables.NewRules(&ruleset.NFTables{})
	for _, f := range o.SupportedFamilies() {
		r := remover{family: f, programs: newPrograms(f, o.IPTablesVariant), rules: rules, log: log}
		errs = append(errs, r.services(ctx, o, proxies), r.masquerading(ctx, agents))
	}
	return errors.Join(errs...)
}

// remover removes the rules of one family.
type remover struct {
	family   service.Family
	programs *programs
	rules    *nftables.Rules
	log      logf
}

// services removes the rules of Services: packetwalk-node's own table, and the chains of iptables unless another service proxy runs, whose
// they are then.
func (r remover) services(ctx context.Context, o Options, proxies []string) error {
	p, err := newProxy(o.config(r.family), programsOf{r.family, r.programs}, BackendNFTables, r.rules)
	if err != nil {
		return err
	}
	if err := p.syncer.Remove(ctx); err != nil {
		return err
	}
	r.log("no %s rules of Services made of nftables are left", r.family)
	if len(proxies) > 0 {
		r.log("the %s rules of Services made of iptables stay: %s runs here", r.family, strings.Join(proxies, ", "))
		return nil
	}
	if err := r.withPrograms(ctx, p.idle.Remove(ctx)); err != nil {
		return err
	}
	r.log("no %s rules of Services made of iptables are left", r.family)
	return nil
}

// withPrograms ignores that iptables is not installed, unless rules of Services show that it was needed.
func (r remover) withPrograms(ctx context.Context, err error) error {
	if !errors.Is(err, exec.ErrNotFound) {
		return err
	}
	return withoutIPTables(ctx, r.rules, r.family)
}

// masquerading removes the chain IP-MASQ-AGENT, unless an ip-masq-agent of others runs, and kubenet's rule.
func (r remover) masquerading(ctx context.Context, agents []string) error {
	edits := []func(*iptables.Table) iptables.Edit{noderules.RemoveKubenet}
	if len(agents) > 0 {
		r.log("the %s chain %s stays: %s runs here", r.family, ipmasq.Chain, strings.Join(agents, ", "))
	} else {
		edits = append(edits, ipmasq.Remove)
	}
	for _, edit := range edits {
		if _, err := editNAT(ctx, r.programs, edit); errors.Is(err, exec.ErrNotFound) {
			r.log("iptables is not installed: no %s rules of it are removed", r.family)
			return nil
		} else if err != nil {
			return err
		}
	}
	r.log("no %s rules of packetwalk that masquerade are left", r.family)
	return nil
}
