//go:build !linux

package cli

import (
	"github.com/spf13/cobra"

	"packetwalk.dev/internal/mcpserver"
)

// addLabTools adds nothing: labs need Linux.
func addLabTools(*mcpserver.Server, *cobra.Command, string) {}
