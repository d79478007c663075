package agent

import (
	"context"
	"errors"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/kube"
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

// runAndCleanUp runs the agent, and removes its rules when the end of it is the end of its DaemonSet.
func (a *agent) runAndCleanUp(ctx context.Context, config *rest.Config) error {
	namespace, name, _ := strings.Cut(a.CleanupOnDelete, "/")
	owner, err := kube.NewOwner(config, a.api.note, namespace, name)
	if err != nil {
		return err
	}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx)) // also when told to end, until it is known why
	defer cancel()
	go owner.Run(watch)
	if err := a.run(ctx); err != nil {
		return err
	}
	return a.cleanUp(owner.Deleted, func(ctx context.Context) error { return Cleanup(ctx, a.Options) })
}

const (
	askTime     = 5 * time.Second  // how long the API server may take to say whether a DaemonSet is there
	cleanUpTime = 15 * time.Second // for the removal of all rules
)

// cleanUp removes the service proxy's rules if the DaemonSet has been deleted, for certain, and this agent wrote them.
func (a *agent) cleanUp(deleted func(context.Context) (bool, error), remove func(context.Context) error) error {
	for _, p := range a.proxies {
		if p.triggered == nil {
			a.log("not all rules are of this agent; they stay")
			return nil
		}
	}
	ask, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	gone, err := deleted(ask)
	if err != nil || !gone {
		if err != nil {
			a.warn("rules stay: %v", err)
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTime)
	defer cancel()
	a.log("the DaemonSet has been deleted: removing the rules of services")
	return remove(ctx)
}
