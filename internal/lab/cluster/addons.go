package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
)

// AddonHTTPRouting is AKS's HTTP application routing: an ingress controller behind a LoadBalancer Service, and a DNS zone for Ingresses.
const AddonHTTPRouting = "http_application_routing"

// HasAddon reports whether spec.addons names an addon.
func (c *Cluster) HasAddon(name string) bool { return slices.Contains(c.Spec.Addons, name) }

// HTTPRoutingZone returns the DNS zone that AKS makes with the addon for HTTP application routing: 20 hex digits, the location and
// aksapp.io. In Azure the digits are random; here they follow from what tells a cluster from others in Azure, so that examples keep their
// names.
func (c *Cluster) HTTPRoutingZone() string {
	id := sha256.Sum256([]byte(c.Spec.Azure.Subscription + "/" + c.Spec.Azure.ResourceGroup + "/" + c.Metadata.Name))
	return hex.EncodeToString(id[:10]) + "." + c.Spec.Azure.Location + ".aksapp.io"
}
