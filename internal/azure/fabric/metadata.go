package fabric

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"packetwalk.dev/internal/azure/vnet"
)

// metadataVersions are the versions of the Instance Metadata Service's interface that the fabric answers, the newest last.
var metadataVersions = []string{"2020-09-01", "2021-02-01"}

// Errors of the Instance Metadata Service, as it words them.
const (
	noMetadataHeader = "Bad request. Required metadata header not specified"
	noAPIVersion     = "Bad request. api-version was not specified in the request. For more information refer to aka.ms/azureimds"
	noPath           = "Not found"
)

// metadataService answers as the Azure Instance Metadata Service ("Azure Instance Metadata Service for virtual machines",
// learn.microsoft.com): what Azure knows of the machine that a request comes from, by its address. Machines have no identities.
func (f *Fabric) metadataService(w http.ResponseWriter, r *http.Request) {
	machine := f.machineAt(r.RemoteAddr)
	fail := func(status int, problem string) { answerMetadata(w, status, map[string]any{"error": problem}) }
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case !strings.EqualFold(r.Header.Get("Metadata"), "true") || r.Header.Get("X-Forwarded-For") != "":
		fail(http.StatusBadRequest, noMetadataHeader)
	case machine == "" || path[0] != "metadata" || len(path) < 2:
		fail(http.StatusNotFound, noPath)
	case path[1] == "versions":
		answerMetadata(w, http.StatusOK, map[string]any{"apiVersions": metadataVersions})
	case r.URL.Query().Get("api-version") == "":
		answerMetadata(w, http.StatusBadRequest, map[string]any{"error": noAPIVersion, "newest-versions": metadataVersions})
	case path[1] == "identity":
		answerMetadata(w, http.StatusBadRequest, map[string]any{"error": "invalid_request", "error_description": "Identity not found"})
	case path[1] != "instance":
		fail(http.StatusNotFound, noPath)
	default:
		f.mu.Lock()
		instance := instanceOf(f.network, machine)
		f.mu.Unlock()
		value, ok := fieldAt(instance, path[2:])
		if !ok {
			fail(http.StatusNotFound, noPath)
			return
		}
		if text, leaf := value.(string); leaf && r.URL.Query().Get("format") == "text" {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			fmt.Fprint(w, text)
			return
		}
		answerMetadata(w, http.StatusOK, value)
	}
}

func answerMetadata(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// fieldAt returns the part of a value that a path of names and indices leads to.
func fieldAt(value any, path []string) (any, bool) {
	for _, name := range path {
		switch v := value.(type) {
		case map[string]any:
			next, ok := v[name]
			if !ok {
				return nil, false
			}
			value = next
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(v) {
				return nil, false
			}
			value = v[i]
		default:
			return nil, false
		}
	}
	return value, true
}

// instanceOf returns what the service says of a machine, as far as the fabric knows: not its size, image and disks.
func instanceOf(n vnet.Network, machine string) map[string]any {
	group := n.ResourceGroup
	if strings.HasPrefix(machine, "aks-") {
		group = n.NodeResourceGroup
	}
	compute := map[string]any{
		"azEnvironment": "AzurePublicCloud", "location": n.Location, "name": machine, "osType": "Linux", "provider": "Microsoft.Compute",
		"resourceGroupName": group, "subscriptionId": n.Subscription, "resourceId": fmt.Sprintf(
			"/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Compute/virtualMachines/%s", n.Subscription, group, machine),
	}
	interfaces := []any{}
	for _, nic := range n.NICs {
		if nic.Machine == machine {
			interfaces = append(interfaces, interfaceOf(n, nic))
		}
	}
	return map[string]any{"compute": compute, "network": map[string]any{"interface": interfaces}}
}

func interfaceOf(n vnet.Network, nic vnet.NIC) map[string]any {
	addresses := []any{}
	for _, c := range nic.IPConfigs {
		public, ok := n.PublicIP(c.PublicIP)
		text := ""
		if ok {
			text = public.Address.String()
		}
		addresses = append(addresses, map[string]any{"privateIpAddress": c.Address.String(), "publicIpAddress": text})
	}
	s, _ := n.Subnet(nic.VNet, nic.Subnet)
	subnet := map[string]any{"address": s.Prefix.Masked().Addr().String(), "prefix": strconv.Itoa(s.Prefix.Bits())}
	return map[string]any{
		"ipv4":       map[string]any{"ipAddress": addresses, "subnet": []any{subnet}},
		"ipv6":       map[string]any{"ipAddress": []any{}},
		"macAddress": strings.ToUpper(strings.ReplaceAll(nic.MAC, ":", "")),
	}
}
