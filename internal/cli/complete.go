package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/session"
)

// completeBy completes a word by names, which are read within completionTime.
func completeBy(names func(ctx context.Context, args []string) ([]string, error)) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTime)
		defer cancel()
		all, err := names(ctx, args)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		found := slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !strings.HasPrefix(name, typed) })
		slices.Sort(found)
		return slices.Compact(found), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes the values of a flag by a fixed list.
func completeFlag(c *cobra.Command, flag string, values ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// openedEnds returns a function that lists the ends of a session and closes it.
func openedEnds(open func(ctx context.Context) (*session.Session, error)) func(context.Context, []string) ([]string, error) {
	return func(ctx context.Context, _ []string) ([]string, error) {
		opened, err := open(ctx)
		if err != nil {
			return nil, err
		}
		defer func() { _ = opened.Close(ctx) }()
		return endsOf(opened), nil
	}
}

// endsOf returns the ends that have names.
func endsOf(s *session.Session) []string {
	objects := s.Source().Objects()
	var names []string
	for _, p := range objects.Pods {
		names = append(names, "pod/"+p.Namespace+"/"+p.Name)
	}
	for _, service := range objects.Services {
		names = append(names, "svc/"+service.Namespace+"/"+service.Name)
	}
	for _, d := range endpoint.Workloads(&objects) {
		names = append(names, d.String())
	}
	if s.Cluster != nil {
		for _, n := range s.Cluster.Nodes() {
			names = append(names, "node/"+n)
		}
		return names
	}
	for _, host := range s.Source().Names() {
		kind, _, _ := strings.Cut(host, "/")
		if slices.Contains([]string{"node", "vm", "internet", "netns"}, kind) {
			names = append(names, host)
		}
	}
	return names
}
