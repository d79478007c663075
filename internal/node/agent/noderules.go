package agent

import (
	"context"
	"errors"

	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/iptables"
)

// nodeRulesFault is the fault of rules of the node that are not in force.
const nodeRulesFault = "write the node's own rules"

// ensureNodeRules appends those of the node's own rules that the kernel does not have.
func (a *agent) ensureNodeRules(ctx context.Context) {
	own := a.NodeRules()
	for _, p := range a.programs {
		if p.Family != service.IPv4 {
			continue
		}
		var failed error
		for _, table := range own.Tables() {
			dump, err := p.Save(ctx, table)
			edit := own.Edit(table, dump)
			if err == nil && !edit.IsZero() {
				err = p.Restore(ctx, iptables.AppendRestore(nil, []iptables.Edit{edit}))
			}
			failed = errors.Join(failed, err)
			if n := len(edit.Append); n > 0 && err == nil {
				a.logger.Infof("appended %d of the node's own rules in table %s", n, table)
			}
		}
		a.faults.Note(nodeRulesFault, failed)
	}
}
