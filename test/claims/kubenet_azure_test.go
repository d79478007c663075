package claims

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestAzureView shows no claim of the articles: it compares what Azure's commands say of a cluster with what its API and its machines say.
func TestAzureView(t *testing.T) {
	t.Parallel()
	k := kubenetWorld(t)
	const group = "MC_akstest_kubenetcluster_westeurope"
	az := func(query string, args ...string) []string {
		t.Helper()
		return strings.Fields(k.Az(t, append(args, "--query", query, "-o", "tsv")...))
	}
	same := func(what string, got, want []string) {
		t.Helper()
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}

	var nodes corev1.NodeList
	k.Get(t, &nodes, "nodes")
	var names, addresses, routes, macs []string
	for _, n := range nodes.Items {
		var address string
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP {
				address = a.Address
			}
		}
		names, addresses = append(names, n.Name), append(addresses, address)
		routes = append(routes, fmt.Sprintf("%s,%s,%s", podRoute(n), n.Spec.PodCIDR, address))
		mac := strings.TrimSpace(k.SSH(t, n.Name, "cat", "/sys/class/net/eth0/address"))
		macs = append(macs, strings.ToUpper(strings.ReplaceAll(mac, ":", "-")))
	}
	same("az vm list", az("[].name", "vm", "list", "-g", group), names)
	same("az vm list, the others", az("[].name", "vm", "list", "-g", "akstest"), []string{"testvm"})
	same("az network nic list: addresses", az("[].ipConfigurations[0].privateIpAddress", "network", "nic", "list", "-g", group), addresses)
	same("az network nic list: MACs", az("[].macAddress", "network", "nic", "list", "-g", group), macs)
	same("az network route-table route list",
		az("[].join(',', [name, addressPrefix, nextHopIpAddress])", "network", "route-table", "route", "list", "-g", "akstest",
			"--route-table-name", "pods"), routes)
	nic := az("[0].name", "network", "nic", "list", "-g", group)[0]
	effective := az("value[?source=='User'].join(',', [name, addressPrefix[0], nextHopIpAddress[0]])",
		"network", "nic", "show-effective-route-table", "-g", group, "-n", nic)
	same("az network nic show-effective-route-table", effective, routes)
	if ips := az("[].ipAddress", "network", "public-ip", "list", "-g", group); !slices.Contains(ips, k.front) {
		t.Errorf("az network public-ip list: %v, want the Service's %s among them", ips, k.front)
	}

	version := strings.TrimPrefix(nodes.Items[0].Status.NodeInfo.KubeletVersion, "v")
	same("az aks list", az("[].[nodeResourceGroup, currentKubernetesVersion, networkProfile.networkPlugin, networkProfile.podCidr]", "aks",
		"list"),
		[]string{group, version, "kubenet", "192.168.0.0/16"})
	same("az aks nodepool list", az("[].[name, count, provisioningState]", "aks", "nodepool", "list", "-g", "akstest", "--cluster-name",
		"kubenetcluster"),
		[]string{"nodepool1", fmt.Sprint(len(names)), "Succeeded"})
	expect(t, k.Az(t, "network", "vnet", "subnet", "list", "-g", "akstest", "--vnet-name", "aksVnet", "-o", "table"),
		`^10\.13\.77\.0/24 +kubenet +Succeeded +akstest$`)
}
