// Command flanneld is flannel's daemon for Kubernetes with the backends host-gw and vxlan and iptables, out of upstream's own packages, in
// the order of upstream's main: that one links a backend whose module the public proxy does not have. Its flags are upstream's.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
)

const (
	annotations   = "flannel.alpha.coreos.com"
	resyncSeconds = 5
)

func main() {
	netConfig := flag.String("net-config-path", "/etc/kube-flannel/net-conf.json", "network configuration")
	subnetFile := flag.String("subnet-file", "/run/flannel/subnet.env", "what the CNI plugin reads")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *netConfig, *subnetFile); err != nil {
		fmt.Fprintln(os.Stderr, "flanneld:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, netConfig, subnetFile string) error {
	manager, err := kube.NewSubnetManager(ctx, "", "", annotations, netConfig, true)
	if err != nil {
		return fmt.Errorf("make the subnet manager: %w", err)
	}
	config, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("read the network's configuration: %w", err)
	}
	stack, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	card, err := ipmatch.LookupExtIface("", "", "", stack, ipmatch.PublicIPOpts{})
	if err != nil {
		return fmt.Errorf("find the interface to other nodes: %w", err)
	}
	var wg sync.WaitGroup
	kind, err := backend.NewManager(ctx, manager, card).GetBackend(config.BackendType)
	if err != nil {
		return err
	}
	network, err := kind.RegisterNetwork(ctx, &wg, config)
	if err != nil {
		return fmt.Errorf("register the network: %w", err)
	}
	if err := rules(ctx, config, network); err != nil {
		return err
	}
	lease := network.Lease()
	if err := manager.HandleSubnetFile(subnetFile, config, true, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("write %s: %w", subnetFile, err)
	}
	wg.Go(func() { network.Run(ctx) })
	err = manager.CompleteLease(ctx, lease, &wg)
	wg.Wait()
	return err
}

// rules writes those for masquerading and forwarding, and keeps them.
func rules(ctx context.Context, config *subnet.Config, network backend.Network) error {
	traffic := &iptables.IPTablesManager{}
	if err := traffic.Init(ctx); err != nil {
		return err
	}
	err := traffic.SetupAndEnsureMasqRules(ctx, config.Network, ip.IP4Net{}, ip.IP4Net{}, config.IPv6Network, ip.IP6Net{}, ip.IP6Net{},
		network.Lease(), resyncSeconds, false)
	if err != nil {
		return fmt.Errorf("write the rules for masquerading: %w", err)
	}
	traffic.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resyncSeconds)
	return nil
}
