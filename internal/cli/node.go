//go:build linux

package cli

import (
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/usercluster/remote"
	"packetwalk.dev/internal/usercluster/remote/localhost"
)

// addNodeCommand adds what runs in the pods on the nodes.
func addNodeCommand(root *cobra.Command, s Streams) {
	var life time.Duration
	var node string
	c := &cobra.Command{Use: "on-node", Short: "what runs in the pods on the nodes", Hidden: true}
	wait := &cobra.Command{
		Use: "wait --for DURATION", Args: noArguments("it takes --for alone"),
		RunE: func(c *cobra.Command, _ []string) error {
			select {
			case <-c.Context().Done():
			case <-time.After(life):
			}
			return nil
		},
	}
	wait.Flags().DurationVar(&life, "for", 0, "how long")
	serve := &cobra.Command{
		Use: "serve --node NAME", Args: noArguments("it takes --node alone"),
		RunE: func(c *cobra.Command, _ []string) error {
			return remote.Serve(c.Context(), s.In, s.Out, localhost.Machine(node), Version)
		},
	}
	serve.Flags().StringVar(&node, "node", "", "the node's name")
	c.AddCommand(wait, serve)
	root.AddCommand(c)
}
