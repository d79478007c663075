package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/azure/armread"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/session"
)

// byLogin is the value of --azure that stands for the user's own login.
const byLogin = "login"

// azureOptions is where a walk has Azure's resources from: nothing, the login, or files.
type azureOptions []string

// flag adds --azure.
func (a *azureOptions) flag(f *pflag.FlagSet) {
	f.StringSliceVar((*[]string)(a), "azure", nil,
		"go on past the nodes through Azure, by your own login; --azure=DIR or --azure=FILE,… by what the az CLI wrote")
	f.Lookup("azure").NoOptDefVal = byLogin
}

// extend lets walks go on through Azure, where that was asked for.
func (a azureOptions) extend(ctx context.Context, s Streams, opened *session.Session) error {
	if len(a) == 0 {
		return nil
	}
	if opened.Lab != nil && slices.ContainsFunc(a, isInAzure) {
		return badInput{errors.New("--azure: the lab has its own Azure, and walks go through it: leave --azure out")}
	}
	if opened.Redacted && slices.ContainsFunc(a, isInAzure) {
		return badInput{errors.New("--azure: the capture is redacted, so that its nodes are not found in Azure; " + redactedRemedy)}
	}
	resources, err := a.read(ctx, s, opened.Source().Objects().Nodes)
	if err != nil {
		return err
	}
	if err := opened.ExtendAzure(resources); err != nil {
		return azureError(opened, err)
	}
	return nil
}

// redactedRemedy says how a walk goes from a redacted capture through Azure: both have to have the same names.
const redactedRemedy = "name the map of the redaction with --map, or walk through the capture without --redact"

// azureError returns the error for resources that are not those of the session's cluster. Those of a redacted capture's own cluster are
// not, either, and the reason then misleads.
func azureError(s *session.Session, err error) error {
	if s.Redacted {
		return badInput{fmt.Errorf("--azure: the capture is redacted, and the files have other addresses and names; %s (%w)", redactedRemedy, err)}
	}
	return badInput{fmt.Errorf("--azure: %w", err)}
}

// isInAzure reports whether a value of --azure stands for Azure itself and not for files.
func isInAzure(name string) bool {
	return name == byLogin || strings.HasPrefix(strings.ToLower(name), "/subscriptions/")
}

// read reads the resources; nodes are those of the cluster, as far as they are known.
func (a azureOptions) read(ctx context.Context, s Streams, nodes []snapshot.Node) (*armview.Resources, error) {
	resources := armview.NewResources()
	files := azureFiles{streams: s, left: maxAzureBytes, commands: func() []string { return armview.Commands(nodes) }}
	for _, name := range a {
		switch {
		case isInAzure(name):
			scopes, err := azureScopes(name, nodes)
			if err != nil {
				return nil, err
			}
			if err := armread.Login(ctx, resources, scopes); err != nil {
				return nil, err
			}
		default:
			if err := files.read(name, resources); err != nil {
				return nil, badInput{fmt.Errorf("--azure: %w", err)}
			}
		}
	}
	return resources, nil
}

// azureScopes returns the resources that reading begins with: the nodes' own, or the one that was named.
func azureScopes(name string, nodes []snapshot.Node) ([]string, error) {
	if name != byLogin {
		return []string{name}, nil
	}
	var all []string
	for _, n := range nodes {
		if id, ok := strings.CutPrefix(n.ProviderID, "azure://"); ok {
			all = append(all, id)
		}
	}
	if len(all) == 0 {
		return nil, badInput{errors.New("--azure: no node has a providerID of Azure; " +
			"write --azure=/subscriptions/ID/resourceGroups/MC_… or files")}
	}
	return all, nil
}
