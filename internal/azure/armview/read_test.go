package armview_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/model/walk"
)

const natGateway = subscription1 + "/resourceGroups/net/providers/Microsoft.Network/natGateways/gw"

// gatewayJSON returns a NAT gateway as "az network nat gateway list" writes it.
func gatewayJSON(addresses, etag string) string {
	return fmt.Sprintf(`[{"etag": %q, "id": %q, "idleTimeoutInMinutes": 4, "location": "westeurope", "name": "gw", "provisioningState": "Succeeded",
"publicIpAddresses": %s, "resourceGroup": "net", "sku": {"name": "Standard"}, "type": "Microsoft.Network/natGateways"}]`, etag, natGateway, addresses)
}

func addressRef(name string) string {
	return fmt.Sprintf(`[{"id": "%s/resourceGroups/net/providers/Microsoft.Network/publicIPAddresses/%s", "resourceGroup": "net"}]`, subscription1, name)
}

// networkJSON returns a virtual network with a subnet of one prefix, as "az network vnet list" writes it.
func networkJSON(prefix string) string {
	const id = subscription1 + "/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/shop"
	return fmt.Sprintf(`[{"addressSpace": {"addressPrefixes": ["10.1.0.0/16"]}, "id": %q, "name": "shop", "resourceGroup": "net",
"subnets": [{"addressPrefix": %q, "delegations": [], "id": %q, "name": "aks", "natGateway": {"id": %q, "resourceGroup": "net"}}],
"virtualNetworkPeerings": []}]`, id, prefix, id+"/subnets/aks", natGateway)
}

// TestConflict shows that two files may say the same of a resource, in different forms, and nothing different.
func TestConflict(t *testing.T) {
	subnet := func(prefix string) string { // as "az network vnet subnet list" writes it
		return fmt.Sprintf(`[{"addressPrefix": %q, "id": %q, "name": "aks", "natGateway": {"id": %q}}]`, prefix,
			subscription1+"/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/shop/subnets/aks", natGateway)
	}
	for name, c := range map[string]struct{ first, second, want string }{
		"the same":       {first: gatewayJSON(addressRef("a"), "1"), second: gatewayJSON(addressRef("a"), "1")},
		"another etag":   {first: gatewayJSON(addressRef("a"), "1"), second: gatewayJSON(addressRef("a"), "2")},
		"another case":   {first: gatewayJSON(addressRef("a"), "1"), second: gatewayJSON(addressRef("A"), "1")},
		"null and empty": {first: gatewayJSON("null", "1"), second: gatewayJSON("[]", "1")},
		"as Azure Resource Manager answers": {first: gatewayJSON(addressRef("a"), "1"),
			second: fmt.Sprintf(`{"value": [{"id": %q, "name": "gw", "sku": {"name": "Standard"}, "properties": {"idleTimeoutInMinutes": 4, "publicIpAddresses": %s}}]}`,
				natGateway, addressRef("a"))},
		"another address": {first: gatewayJSON(addressRef("a"), "1"), second: gatewayJSON(addressRef("b"), "1"),
			want: "old.json and new.json have different content for NAT gateway " + natGateway + " (publicIpAddresses); remove the older file"},
		"another MAC address": {first: interfaceJSON(natGateway+"/networkInterfaces/n", "", "00-0D-3A-00-00-04", "10.1.0.4"),
			second: interfaceJSON(natGateway+"/networkInterfaces/n", "", "00-0D-3A-00-00-05", "10.1.0.4"), want: "(macAddress)"},
		"no address":     {first: gatewayJSON(addressRef("a"), "1"), second: gatewayJSON("[]", "1"), want: "(publicIpAddresses)"},
		"subnet alone":   {first: networkJSON("10.1.0.0/18"), second: subnet("10.1.0.0/18")},
		"another subnet": {first: networkJSON("10.1.0.0/18"), second: subnet("10.1.64.0/18"), want: "for subnet " + subscription1},
		"subnet before":  {first: subnet("10.1.64.0/18"), second: networkJSON("10.1.0.0/18"), want: "old.json and new.json"},
		"twice in one file": {first: `[]`, second: strings.TrimSuffix(gatewayJSON(addressRef("a"), "1"), "]") + "," +
			strings.TrimPrefix(gatewayJSON(addressRef("b"), "1"), "["), want: "new.json has NAT gateway " + natGateway + " twice"},
	} {
		t.Run(name, func(t *testing.T) {
			r := armview.NewResources()
			if err := r.Read("old.json", []byte(c.first)); err != nil {
				t.Fatal(err)
			}
			err := r.Read("new.json", []byte(c.second))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if _, ok := errors.AsType[*armview.ConflictError](err); !ok || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
	r := armview.NewResources() // Azure's own answers replace earlier ones
	for _, address := range []string{"a", "b"} {
		if err := r.Read("", []byte(gatewayJSON(addressRef(address), "1"))); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(r.NATGateways[strings.ToLower(natGateway)].PublicIPs); n != 1 {
		t.Errorf("%d addresses", n)
	}
}

// TestText shows the errors for texts that shells and other tools than az wrote.
func TestText(t *testing.T) {
	const gateway = `[{"id": "/x/natGateways/gw"}]`
	utf16 := []byte{0xff, 0xfe}
	for _, b := range []byte(gateway) {
		utf16 = append(utf16, b, 0)
	}
	for name, c := range map[string]struct{ text, want string }{
		"byte order mark":    {text: "\xef\xbb\xbf" + gateway},
		"UTF-16":             {text: string(utf16), want: "the text is UTF-16; in PowerShell write it with"},
		"empty":              {text: "\n", want: "the file is empty"},
		"table":              {text: "Name    ResourceGroup\n------  -----", want: "no JSON as az … -o json writes it"},
		"query":              {text: `["a"]`, want: "a resource without an id: save what az … -o json prints without --query"},
		"a list's only page": {text: `{"value": ` + gateway + `, "nextLink": null}`},
		"a list's first page": {text: `{"value": [{"id": "/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/natGateways/gw"}], "nextLink":
"https://management.azure.com/subscriptions/s/resourceGroups/net/providers/Microsoft.Network/natGateways?$skiptoken=2"}`,
			want: `one page of a list: nextLink leads to more; save the whole list with "az network nat gateway list --resource-group net -o json > ` +
				`nat-gateway-net.json", or save each further page as a file and take nextLink out`},
		"clusters' first page":  {text: `{"value": [{"id": "/x/managedClusters/c"}], "nextLink": "x"}`, want: `"az aks list -o json > aks.json"`},
		"an empty first page":   {text: `{"value": [], "nextLink": "x"}`, want: "save the whole list with the list command of az"},
		"deep":                  {text: strings.Repeat("[", 1_000_000), want: "no JSON"},
		"deep within":           {text: `[{"id": "/x/natGateways/gw", "sku": ` + strings.Repeat(`{"properties":`, 20_000), want: "no JSON"},
		"field of another kind": {text: `[{"id": "/x/natGateways/gw", "publicIpAddresses": 7}]`, want: "/x/natGateways/gw: "},
	} {
		t.Run(name, func(t *testing.T) {
			err := armview.NewResources().Read("x.json", []byte(c.text))
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
		})
	}
}

// TestNextPage shows that a page of a list that Azure answered is read: whoever asked reads the others.
func TestNextPage(t *testing.T) {
	if err := armview.NewResources().Read("", []byte(`{"value": [{"id": "/x/natGateways/gw"}], "nextLink": "x"}`)); err != nil {
		t.Error(err)
	}
}

// TestForeignLetters shows that ids with letters that are longer in lower case do not break reading, walking or messages.
func TestForeignLetters(t *testing.T) {
	wide := strings.Repeat("\u023a", 40) // two bytes, and three in lower case
	for _, id := range []string{
		"/subscriptions/" + wide + instance0 + "/networkInterfaces/nic",
		"/subscriptions/" + wide + "/virtualMachineScaleSets/x/networkInterfaces/nic",
		"/subscriptions/s/resourceGroups/" + wide + "/providers/Microsoft.Network/networkInterfaces/" + wide,
		wide + "/networkInterfaces/" + wide,
	} {
		r := armview.NewResources()
		if err := r.Read("nic.json", []byte(interfaceJSON(id, id, "00-0D-3A-00-00-04", "10.1.0.4"))); err != nil {
			t.Fatal(err)
		}
		src, err := armview.Extend(one{source(), "azure://" + id, "10.1.0.4"}, r)
		if err == nil {
			_, err = walk.Walk(src, request(t, "10.1.0.4 > 198.51.100.80:443"))
		}
		if _, other := errors.AsType[*armview.MismatchError](err); err != nil && !other {
			t.Errorf("%s: %v", id, err)
		}
		if text := r.UnreadResource(id); !strings.Contains(text, "was not read") {
			t.Errorf("%s: %s", id, text)
		}
	}
}
