//go:build linux

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/lab/aksimport"
	"packetwalk.dev/internal/pods/app"
)

func importCommand(s Streams) *cobra.Command {
	var azure azureOptions
	var name string
	c := &cobra.Command{
		Use:   "import --azure=DIR [--cluster NAME]",
		Short: "write a cluster.yaml that resembles a real AKS cluster",
		Long: `Reads what the az CLI prints of an AKS cluster and its networks, and writes a cluster.yaml to standard output. A lab of it has the cluster's virtual
networks, peerings, subnets, route tables, security groups, node pools and network profile. A comment stands where the lab is different.`,
		Example: `  az aks list -o json > azure/aks.json; az network vnet list -o json > azure/vnet.json
  packetwalk import --azure=azure > cluster.yaml
  packetwalk up -f cluster.yaml`,
		Args: noArguments("the files are --azure=DIR or --azure=FILE,…"),
		RunE: func(c *cobra.Command, _ []string) error {
			if len(azure) == 0 {
				return badInput{errors.New("import needs the files that az wrote: packetwalk import --azure=DIR")}
			}
			resources, err := azure.read(c.Context(), s, nil)
			if err != nil {
				return err
			}
			text, err := aksimport.Cluster(resources, name, app.Servers()...)
			if err != nil {
				return badInput{fmt.Errorf("import: %w", err)}
			}
			_, err = s.Out.Write(text)
			return err
		},
	}
	f := c.Flags()
	azure.flag(f)
	f.Lookup("azure").Usage = "what the az CLI wrote: DIR or FILE,…; or /subscriptions/ID/resourceGroups/MC_…, read with your login"
	f.StringVar(&name, "cluster", "", "the AKS cluster, where there are several")
	return c
}
