package agent

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/agent/serviceproxy"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/node/ipmasq"
	"packetwalk.dev/internal/node/noderules"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/syntax/iptables"
)

// RemoveRules removes the rules that packetwalk-nodes left on this node: those of Services, the chain IP-MASQ-AGENT and kubenet's rule.
// Rules that another program has taken over stay, and the log names it. It fails while a packetwalk-node runs.
func RemoveRules(ctx context.Context, o options.Options, log func(format string, args ...any)) error {
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
	o.Backend = options.BackendNFTables // of which there may be rules of both families, whether iptables is installed or not
	var errs []error
	rules := nftables.NewRules(&ruleset.NFTables{})
	for _, f := range o.SupportedFamilies() {
		programs := iptablescmd.New(f, o.IPTablesVariant)
		errs = append(errs, serviceproxy.RemoveRules(ctx, o, programs, rules, proxies, log), removeMasquerading(ctx, programs, agents, log))
	}
	return errors.Join(errs...)
}

// removeMasquerading removes a family's chain IP-MASQ-AGENT, unless other ip-masq-agents run, and kubenet's rule.
func removeMasquerading(ctx context.Context, p *iptablescmd.Programs, agents []string, log func(format string, args ...any)) error {
	edits := []func(*iptables.Table) iptables.Edit{noderules.RemoveKubenet}
	if len(agents) > 0 {
		log("the %s chain %s stays: %s runs here", p.Family, ipmasq.Chain, strings.Join(agents, ", "))
	} else {
		edits = append(edits, ipmasq.Remove)
	}
	for _, edit := range edits {
		if _, err := iptablescmd.EditNAT(ctx, p, edit); errors.Is(err, exec.ErrNotFound) {
			log("iptables is not installed: no %s rules of it are removed", p.Family)
			return nil
		} else if err != nil {
			return err
		}
	}
	log("no %s rules of packetwalk that masquerade are left", p.Family)
	return nil
}
