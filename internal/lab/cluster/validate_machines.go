package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// maxHostName is the most characters of an internet host's name: a link's name is made of it, and Linux allows those 15.
const maxHostName = 11

// hostNames are what the lab calls hosts of its own and components in "ssh" and "logs", and its folders beside theirs.
var hostNames = []string{
	"fabric", "internet", "controlplane", "lab", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
	"cloud-controller-manager", "azure-dns", "internet-dns", "management", "localhost",
	"pods", "groups", "group-hosts",
}

// machines checks the VMs and the internet's hosts.
func (v *validator) machines() {
	names := map[string]string{}
	for _, n := range hostNames {
		names[n] = "a part of the lab"
	}
	for _, n := range v.c.Nodes() {
		names[n.Name] = "a node"
	}
	v.vms(names)
	addrs := map[netip.Addr]string{}
	for i, h := range v.c.Spec.Internet.Hosts {
		at := fmt.Sprintf("spec.internet.hosts[%d]", i)
		v.hostName(at+".name", h.Name)
		v.unique(at+".name", h.Name, names)
		v.app(at+".app", h.App)
		v.internetAddress(at, h.Address, addrs)
	}
}

func (v *validator) vms(names map[string]string) {
	addrs := map[netip.Addr]string{}
	public := 0
	for i, vm := range v.c.Spec.Azure.VMs {
		at := fmt.Sprintf("spec.azure.vms[%d]", i)
		v.name(at+".name", vm.Name, dnsLabel, "1 to 63 lower-case letters, digits and -, a letter or digit at both ends")
		v.unique(at+".name", vm.Name, names)
		v.app(at+".app", vm.App)
		v.subnetRef(at+".subnet", vm.Subnet, v.isOpen)
		if _, s, ok := v.c.findSubnet(vm.Subnet); ok && usable(s.Prefix) {
			v.vmAddress(at+".address", vm, s.Prefix.Masked())
			v.uniqueAddress(at+".address", vm.Address, addrs)
		}
		if vm.PublicIP {
			public++
		}
		if most := int(lastVMPublicIP.As4()[3]-firstVMPublicIP.As4()[3]) + 1; vm.PublicIP && public > most {
			v.errs.add(at+".publicIP", "leave it out", "there are %d public addresses for VMs, %s to %s", most, firstVMPublicIP, lastVMPublicIP)
		}
	}
}

func (v *validator) vmAddress(path string, vm VM, subnet netip.Prefix) {
	first, end := nth(subnet, reservedFirst), last(subnet)
	remedy := fmt.Sprintf("write one from %s to %s, or leave it out", first, end.Prev())
	switch a := vm.Address; {
	case !a.IsValid():
		v.errs.add(path, "give the subnet a shorter prefix", "subnet %s, %s, has no free address", vm.Subnet, subnet)
	case !subnet.Contains(a):
		v.errs.add(path, remedy, "%s is not in subnet %s, %s", a, vm.Subnet, subnet)
	case a.Compare(first) < 0 || a == end:
		v.errs.add(path, remedy, "%s is one of the addresses that Azure keeps in %s", a, subnet)
	default:
		for _, r := range v.c.nodeRows() {
			if inRows([]addrRange{r}, a) {
				v.errs.add(path, "leave it out, or write one that is free", "%s is among the addresses of %s, %s to %s", a, r.what, r.first, r.last)
			}
		}
	}
}

func (v *validator) uniqueAddress(path string, a netip.Addr, taken map[netip.Addr]string) {
	if first, ok := taken[a]; ok && a.IsValid() {
		v.errs.add(path, "write another address", "%s is already %s", a, first)
		return
	}
	taken[a] = path
}

func (v *validator) hostName(path, name string) {
	ok := len(name) <= maxHostName
	for label := range strings.SplitSeq(name, ".") {
		ok = ok && dnsLabel.MatchString(label)
	}
	if !ok {
		v.errs.add(path, fmt.Sprintf("write a DNS name in lower case of at most %d characters, such as client or ifconfig.co", maxHostName),
			"%q is not possible", name)
	}
}

func (v *validator) internetAddress(at string, a netip.Addr, taken map[netip.Addr]string) {
	path := at + ".address"
	if a.Compare(firstInternetHost) < 0 || a.Compare(lastInternetHost) > 0 {
		what := a.String() + " is not an address for internet hosts"
		if !a.IsValid() {
			what = "missing"
		}
		v.errs.add(path, fmt.Sprintf("write one from %s to %s", firstInternetHost, lastInternetHost), "%s", what)
		return
	}
	v.uniqueAddress(path, a, taken)
}

func (v *validator) app(path, app string) {
	if app == "" || len(v.apps) == 0 || slices.Contains(v.apps, app) {
		return
	}
	v.errs.add(path, suggest(app, v.apps, "leave it out, or write one of "), "no built-in application %q", app)
}
