package manifests

import (
	"bytes"
	"embed"
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/node/ipmasq"
)

// Templates of objects, documents of YAML.
//
//go:embed *.yaml
var files embed.FS

var templates = template.Must(template.New("").Option("missingkey=error").ParseFS(files, "*.yaml"))

// objects returns the documents of a template.
func objects(name string, values map[string]any) ([]string, error) {
	var b bytes.Buffer
	err := templates.ExecuteTemplate(&b, name, values)
	return Documents(b.String()), err
}

// Documents splits a file of YAML at its lines of three dashes; those without content are left out.
func Documents(text string) []string {
	docs := strings.Split("\n"+text, "\n---\n")
	return slices.DeleteFunc(docs, func(doc string) bool { return strings.TrimSpace(doc) == "" })
}

// coreDNSVersion is that of controlplane/go.mod.
const coreDNSVersion = "v1.14.7"

// UserNamespaces returns the policy that gives pods user namespaces.
func UserNamespaces() ([]string, error) { return objects("user-namespaces.yaml", nil) }

// Warnings returns the policy that warns of pods that could reach the machine.
func Warnings() ([]string, error) { return objects("warnings.yaml", nil) }

// DNS returns the objects of the cluster's DNS.
func DNS(c *cluster.Cluster) ([]string, error) {
	return objects("coredns.yaml", map[string]any{
		"Address": c.Spec.Network.DNSServiceIP, "Domain": plan.ClusterDomain, "Version": coreDNSVersion,
	})
}

// metricsServerVersion is that of controlplane/metrics/go.mod.
const metricsServerVersion = "v0.8.0"

// MetricsServer returns the objects of upstream's metrics-server.
func MetricsServer() ([]string, error) {
	return objects("metrics-server.yaml", map[string]any{"Version": metricsServerVersion})
}

// HTTPRouting returns the objects of the addon for HTTP application routing; its zone is changed with the secret of a TSIG key of that
// name.
func HTTPRouting(c *cluster.Cluster, key, secret string) ([]string, error) {
	return objects("http_application_routing.yaml", map[string]any{
		"Zone": c.HTTPRoutingZone(), "Resolver": plan.AzureResolver, "Key": key, "Secret": secret,
	})
}

// Credentials are the connector's: the bearer token of Azure's interface, the authority that signed that interface's certificate, and a
// kubeconfig for the service proxies of container groups.
type Credentials struct {
	Token         string
	CA            []byte // PEM
	ProxyIdentity []byte // a kubeconfig
}

// Connector returns the objects of the virtual node.
func Connector(c *cluster.Cluster, as Credentials) ([]string, error) {
	network, subnet, _ := strings.Cut(c.Spec.VirtualNode.Subnet, "/")
	encode := base64.StdEncoding.EncodeToString
	return objects("connector.yaml", map[string]any{
		"Token": encode([]byte(as.Token)), "CA": encode(as.CA), "Kubeconfig": encode(as.ProxyIdentity),
		"Node": plan.VirtualNode, "Version": plan.VirtualNodeVersion, "Endpoint": plan.ManagementName,
		"Subscription": c.Spec.Azure.Subscription, "ResourceGroup": c.NodeResourceGroup(), "Location": c.Spec.Azure.Location,
		"VNetResourceGroup": c.Spec.Azure.ResourceGroup, "VNet": network, "Subnet": subnet,
		"DNS": c.Spec.Network.DNSServiceIP, "Domain": plan.ClusterDomain, "ClusterCIDR": c.PodRange(), "Rules": c.Spec.ServiceProxy.Rules,
	})
}

// IPMasqAgent returns the ip-masq-agent's ConfigMap, AKS's own, and DaemonSet, for a cluster that has one. The ConfigMap is of form v1 the
// one that users edit, which AKS makes once; of form v2 the one that it keeps as it is.
func IPMasqAgent(c *cluster.Cluster) (configMap, daemonSet string, err error) {
	agent := c.Spec.Network.IPMasqAgent
	form, err := ipmasq.ParseForm(string(agent))
	if err != nil {
		return "", "", err
	}
	config := ipmasq.Config{
		MasqLinkLocal: ipmasq.Switch{On: true}, CIDRLimit: ipmasq.DefaultCIDRLimit, ResyncInterval: ipmasq.DefaultResyncInterval,
	}
	for _, r := range c.Spec.Network.NonMasqueradeCIDRs {
		config.NonMasquerade = append(config.NonMasquerade, ipmasq.CIDR{Prefix: r})
	}
	values := map[string]any{
		"Name": ipmasq.UserConfigMap, "Key": ipmasq.FileV1, "Mode": "EnsureExists",
		"Image": "mcr.microsoft.com/oss/kubernetes/ip-masq-agent:v2.5.0",
		"Text":  config.Text(form), "Port": plan.AgentPort, "ConfigMaps": plan.MasqConfigMaps(agent),
	}
	if form == ipmasq.FormV2 {
		values["Name"], values["Key"], values["Mode"] = ipmasq.ReconciledConfigMap, "ip-masq-agent-reconciled", "Reconcile"
		values["Image"] = "mcr.microsoft.com/aks/ip-masq-agent-v2:v0.1.15"
	}
	docs, err := objects("ip-masq-agent.yaml", values)
	if err != nil {
		return "", "", err
	}
	return docs[0], docs[1], nil
}

// imageLine is an image in a document.
var imageLine = regexp.MustCompile(`(?m)^\s*(?:- )?image: (\S+)$`)

// Images returns the references of all images that the objects of a cluster name, those of addons too.
func Images(c *cluster.Cluster) ([]string, error) {
	system, err := SystemImages(c)
	if err != nil {
		return nil, err
	}
	routing, err := HTTPRouting(c, "", "")
	if err != nil {
		return nil, err
	}
	connector, err := Connector(c, Credentials{})
	if err != nil {
		return nil, err
	}
	return normalize(append(system, imagesOf(slices.Concat(routing, connector))...)), nil
}

// SystemImages returns the references of the images of a cluster's own pods without addons.
func SystemImages(c *cluster.Cluster) ([]string, error) {
	dns, err := DNS(c)
	if err != nil {
		return nil, err
	}
	metrics, err := MetricsServer()
	if err != nil {
		return nil, err
	}
	docs := slices.Concat(dns, metrics)
	if c.Spec.Network.IPMasqAgent != cluster.IPMasqNone {
		_, agent, err := IPMasqAgent(c)
		if err != nil {
			return nil, err
		}
		docs = append(docs, agent)
	}
	return normalize(imagesOf(docs)), nil
}

func imagesOf(docs []string) (images []string) {
	for _, doc := range docs {
		for _, match := range imageLine.FindAllStringSubmatch(doc, -1) {
			images = append(images, match[1])
		}
	}
	return images
}

func normalize(refs []string) []string {
	slices.Sort(refs)
	return slices.Compact(refs)
}

// StorageClass returns the class of claims that name none, as AKS has one; its provisioner is package volumes's.
func StorageClass() ([]string, error) { return objects("storageclass.yaml", nil) }

// CalicoSettings returns what a cluster with Calico has beside the definitions of Calico's resources: the agent's service account and
// rights, and Calico's own objects. Users may change those, so they are made once.
func CalicoSettings(c *cluster.Cluster) (rights, settings []string, err error) {
	docs, err := objects("calico.yaml", map[string]any{"Version": c.CalicoVersion(), "Tiers": c.CalicoVersion() != cluster.Calico327})
	if err != nil {
		return nil, nil, err
	}
	for _, doc := range docs {
		if strings.Contains(doc, "apiVersion: crd.projectcalico.org/v1") {
			settings = append(settings, doc)
		} else {
			rights = append(rights, doc)
		}
	}
	if c.CalicoVersion() == cluster.Calico327 {
		pool, err := calicoPool(c.PodRange())
		return rights, append(settings, pool), err
	}
	return rights, settings, nil
}

// calicoPool returns the pool that AKS made with Kubernetes 1.19: the range that its pods get addresses of. Today's AKS makes none.
// Labels and annotation are what its add-on manager, which applies it as kubectl does, leaves on it.
func calicoPool(pods netip.Prefix) (string, error) {
	type object = map[string]any
	labels := object{"addonmanager.kubernetes.io/mode": "Reconcile"}
	const name, lastApplied = "default-ipv4-ippool", "kubectl.kubernetes.io/last-applied-configuration"
	pool := object{
		"apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool",
		"metadata": object{"name": name, "labels": labels, "annotations": object{}},
		"spec":     object{"blockSize": 26, "cidr": pods.String(), "ipipMode": "Never", "natOutgoing": true},
	}
	applied, err := json.Marshal(pool)
	if err != nil {
		return "", err
	}
	pool["metadata"] = object{"name": name, "labels": labels, "annotations": object{lastApplied: string(applied) + "\n"}}
	text, err := json.Marshal(pool)
	return string(text), err
}
