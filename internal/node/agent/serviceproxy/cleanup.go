package serviceproxy

import (
	"context"
	"errors"
	"os/exec"
	"strings"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/proxy/nftables"
)

// Cleanup removes the service proxy's rules of the options' backend, of both families.
func Cleanup(ctx context.Context, o options.Options) error {
	var errs []error
	of := &common{Config: Config{Options: o, NFTables: nftables.NewRules(&ruleset.NFTables{})}}
	for _, one := range o.SupportedFamilies() {
		f, err := newFamily(of, o.Config(one), iptablescmd.New(one, o.IPTablesVariant))
		if err == nil {
			err = f.syncer.Remove(ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// RemoveRules removes a family's rules of Services: packetwalk-node's own table, and the chains of iptables unless other service proxies
// run, whose they are then. Where iptables is not installed it fails only if rules show that it was needed.
func RemoveRules(ctx context.Context, o options.Options, programs *iptablescmd.Programs, rules *nftables.Rules, others []string,
	log func(format string, args ...any),
) error {
	o.Backend = options.BackendNFTables
	f, err := newFamily(&common{Config: Config{Options: o, NFTables: rules}}, o.Config(programs.Family), programs)
	if err != nil {
		return err
	}
	if err := f.syncer.Remove(ctx); err != nil {
		return err
	}
	log("no %s rules of Services made of nftables are left", f)
	if len(others) > 0 {
		log("the %s rules of Services made of iptables stay: %s runs here", f, strings.Join(others, ", "))
		return nil
	}
	err = f.idle.Remove(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		err = withoutIPTables(ctx, rules, f.Family)
	}
	if err != nil {
		return err
	}
	log("no %s rules of Services made of iptables are left", f)
	return nil
}
