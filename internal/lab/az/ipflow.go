package az

import (
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v7"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
)

// ipFlowWords is the command that asks what the network security groups of a machine say of a flow.
const ipFlowWords = "network watcher test-ip-flow"

// testIPFlow answers as Network Watcher's IP flow verify does: whether a new flow is let through, and by which rule. Where both the subnet
// and the NIC have a group, the rule is that of the one that denies, or of the one asked last.
func testIPFlow(l Lab, o options, _ io.Writer) (any, error) {
	nic, f, direction, err := o.flow(l.Network)
	if err != nil {
		return nil, err
	}
	if l.Network.IsUnknown(nic, direction, f) {
		return nil, fmt.Errorf("unknown whether Azure allows the flow: it depends on whether %s", vnet.InternetDoubt)
	}
	verdict := armnetwork.VerificationIPFlowResult{Access: new(armnetwork.AccessAllow)}
	if all := l.Network.Decide(nic, direction, f); len(all) > 0 {
		last := all[len(all)-1]
		verdict.Access, verdict.RuleName = new(armnetwork.Access(last.Rule.Access)), new(arm.RuleName(last.Rule))
	}
	answer, err := view([]armnetwork.VerificationIPFlowResult{verdict})
	if err != nil {
		return nil, err
	}
	return answer[0], nil
}

// flow reads the arguments.
func (o options) flow(n vnet.Network) (nic vnet.NIC, f vnet.SecurityFlow, direction string, err error) {
	number, ok := map[string]uint8{"tcp": 6, "udp": 17}[strings.ToLower(o.protocol)]
	if !ok {
		return nic, f, "", usage("argument --protocol: invalid choice: '%s' (choose from TCP, UDP)", o.protocol)
	}
	f.Protocol = number
	local, err := flowEnd("--local", o.local)
	if err != nil {
		return nic, f, "", err
	}
	remote, err := flowEnd("--remote", o.remote)
	if err != nil {
		return nic, f, "", err
	}
	switch strings.ToLower(o.direction) {
	case "inbound":
		direction, f.Source, f.Destination = vnet.DirectionInbound, remote, local
	case "outbound":
		direction, f.Source, f.Destination = vnet.DirectionOutbound, local, remote
	default:
		return nic, f, "", usage("argument --direction: invalid choice: '%s' (choose from Inbound, Outbound)", o.direction)
	}
	for _, nic := range n.NICs {
		if strings.EqualFold(nic.Machine, o.vm) && (o.nic == "" || strings.EqualFold(nic.Name, o.nic)) {
			return nic, f, direction, nil
		}
	}
	return nic, f, "", notFound("(ResourceNotFound) there is no virtual machine '%s' with that NIC; 'az vm list -o table' has them", o.vm)
}

// flowEnd reads ADDRESS:PORT; a port that is * is the one that clients take first.
func flowEnd(flag, s string) (netip.AddrPort, error) {
	if address, ok := strings.CutSuffix(s, ":*"); ok {
		s = address + ":49152"
	}
	end, err := netip.ParseAddrPort(s)
	if err != nil || !end.Addr().Is4() {
		return end, usage("argument %s: '%s' is no IPv4 address with a port such as 10.13.76.4:80", flag, s)
	}
	return end, nil
}
