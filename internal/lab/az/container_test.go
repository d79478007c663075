package az

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/vnet"
)

// containers returns world with the container group of the Part 5 article, and another one that has ended.
func containers() Lab {
	n := world()
	n.VNets = append(n.VNets, vnet.VNet{Name: "container-hosts", Platform: true})
	n.NICs = append(n.NICs, vnet.NIC{Name: "default-kuard-vnode-bd88cbf77-rw8rv-nic", Machine: "default-kuard-vnode-bd88cbf77-rw8rv",
		VNet: "aksVnet", ContainerGroup: true})
	l := labOf(n)
	at := time.Date(2019, 4, 2, 12, 0, 0, 0, time.UTC)
	group := func(name, ip string, ports []aci.Port, view aci.ContainerView, state string, containers ...string) aci.ContainerGroup {
		g := aci.ContainerGroup{
			ID:   "/subscriptions/" + n.Subscription + "/resourceGroups/" + n.NodeResourceGroup + "/providers/" + aci.Type + "/" + name,
			Name: name, Type: aci.Type, Location: n.Location, Tags: map[string]string{"PodName": name},
			Properties: aci.GroupProperties{
				ProvisioningState: aci.ProvisioningSucceeded, OSType: "Linux", RestartPolicy: aci.RestartAlways,
				IPAddress: &aci.IPAddress{Type: aci.Private, IP: netip.MustParseAddr(ip), Ports: ports},
				SubnetIDs: []aci.SubnetID{{ID: "/subscriptions/" + n.Subscription +
					"/resourceGroups/akstest/providers/Microsoft.Network/virtualNetworks/aksVnet/subnets/aci"}},
				Volumes: []aci.Volume{{Name: "v", Secret: map[string]string{"password": "c2VjcmV0"}}},
				Extensions: []aci.Extension{{Name: "kube-proxy",
					Properties: aci.ExtensionProperties{Type: aci.ExtensionKubeProxy,
						ProtectedSettings: map[string]string{aci.SettingKubeConfig: "secret"}}}},
				InstanceView: &aci.GroupView{State: state, Events: []aci.Event{}},
			},
		}
		for _, image := range containers {
			g.Properties.Containers = append(g.Properties.Containers, aci.Container{Name: "kuard", Properties: aci.ContainerProperties{
				Image: image, Ports: ports, Environment: []aci.Variable{{Name: "A", Value: "b"}, {Name: "PASSWORD", SecureValue: "secret"}},
				Resources: aci.Resources{Requests: aci.ResourceAmounts{CPU: 0.5, MemoryInGB: 1.5}}, InstanceView: &view,
			}})
		}
		return g
	}
	code := 1
	l.ContainerGroups = []aci.ContainerGroup{
		group("default-job", "10.13.100.5", nil, aci.ContainerView{
			CurrentState: aci.ContainerState{State: aci.StateTerminated, StartTime: at, FinishTime: at.Add(time.Second), ExitCode: &code,
				DetailStatus: "Error"}, Events: []aci.Event{},
		}, aci.GroupFailed, "busybox", "busybox"),
		group("default-kuard-vnode-bd88cbf77-rw8rv", "10.13.100.4", []aci.Port{{Port: 8080, Protocol: "TCP"}}, aci.ContainerView{
			CurrentState: aci.ContainerState{State: aci.StateRunning, StartTime: at}, Events: []aci.Event{}, Ready: true,
		}, aci.GroupRunning, "gcr.io/kuar-demo/kuard-amd64:blue"),
	}
	l.ContainerLogs = func(group, container string, follow bool, w io.Writer) error {
		_, err := fmt.Fprintf(w, "the log of %s in %s, follow %v\n", container, group, follow)
		return err
	}
	return l
}
