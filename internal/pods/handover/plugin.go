package handover

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// Plugin is the CNI plugin's name, its type in a configuration.
const Plugin = "packetwalk-handover"

// cniVersion is that of the configuration; results are of it too.
const cniVersion = "1.0.0"

// Versions returns the versions of the CNI specification that the plugin speaks.
func Versions() version.PluginInfo { return version.PluginSupports(cniVersion) }

// config is the plugin's configuration.
type config struct {
	types.NetConf
	Socket string `json:"socket"` // who makes the network listens there
}

// Conflist returns the configuration list that has the machine's pods be handed over at a socket.
func Conflist(socket string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"cniVersion": cniVersion, "name": Plugin, "plugins": []any{map[string]string{"type": Plugin, "socket": socket}},
	})
}

// Funcs returns the plugin's commands. The namespace goes with the pod, so that there is nothing to delete.
func Funcs() skel.CNIFuncs {
	nothing := func(*skel.CmdArgs) error { return nil }
	return skel.CNIFuncs{Add: add, Del: nothing, Check: nothing}
}

func add(args *skel.CmdArgs) error {
	var c config
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return types.NewError(types.ErrDecodingFailure, "configuration", err.Error())
	}
	address, err := send(c.Socket, args.Netns)
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("the pod's network: %v", err), "")
	}
	return types.PrintResult(result(args, address), c.CNIVersion)
}

// result says what the pod has.
func result(args *skel.CmdArgs, address netip.Prefix) *current.Result {
	return &current.Result{
		CNIVersion: cniVersion,
		Interfaces: []*current.Interface{{Name: args.IfName, Sandbox: args.Netns}},
		IPs: []*current.IPConfig{{
			Interface: current.Int(0),
			Address:   net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())},
		}},
	}
}
