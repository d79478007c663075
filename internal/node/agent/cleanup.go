package agent

import (
	"context"
	"errors"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/proxy/nftables"
)

// Cleanup removes the service proxy's rules of the options' backend, of both families.
func Cleanup(ctx context.Context, o Options) error {
	var errs []error
	rules := nftables.NewRules(&ruleset.NFTables{})
	for _, f := range o.SupportedFamilies() {
		p, err := newProxy(o.config(f), programsOf{f, newPrograms(f, o.IPTablesVariant)}, o.Backend, rules)
		if err == nil {
			err = p.syncer.Remove(ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
