package lab

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/cluster"
	"packetwalk.dev/internal/vnet"
)

// The name servers outside the cluster: Azure's, which machines in a virtual network ask, and the internet's, on its router.
var (
	azureResolver    = vnet.ProbeSource
	internetResolver = vnet.InternetRouter
)

// coreDNSVersion is that of controlplane/go.mod, the one that Kubernetes 1.35 deploys.
const coreDNSVersion = "v1.13.1"

// clusterDomain is the domain of the cluster's names; AKS has no other.
const clusterDomain = "cluster.local"

// resolvConf is the /etc/resolv.conf of a machine that asks a name server.
func resolvConf(server netip.Addr) []byte { return []byte("nameserver " + server.String() + "\n") }

// resolvFile is the name of that file in the directory of a node or host.
const resolvFile = "resolv.conf"

func writeResolvConf(dir string, text []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, resolvFile), text, 0o600)
}

// resolverOf is the name server that a kind of host asks.
func resolverOf(kind string) netip.Addr {
	if kind == kindInternet {
		return internetResolver
	}
	return azureResolver
}

// startResolvers runs the name servers outside the cluster. Both know the names of the internet's hosts.
func (l *lab) startResolvers(ctx context.Context) error {
	l.mu.Lock()
	l.resolvers = []*host{
		{Host: Host{Name: "azure-dns", Kind: kindAzure, Address: azureResolver.String(), App: "dns"}, ns: l.fabric.Namespace()},
		{Host: Host{Name: "internet-dns", Kind: kindInternet, Address: internetResolver.String(), App: "dns"}, ns: l.fabric.Internet()},
	}
	l.mu.Unlock()
	var g errgroup.Group
	for _, m := range l.resolvers {
		m.args, m.done = append([]string{"-listen", m.Address}, zone(l.cluster)...), make(chan struct{})
		l.startApp(ctx, &g, m)
	}
	return g.Wait()
}

// reviseResolvers gives the name servers other names, by new processes.
func (l *lab) reviseResolvers(ctx context.Context, to *cluster.Cluster) error {
	var g errgroup.Group
	for _, m := range l.resolvers {
		args := append([]string{"-listen", m.Address}, zone(to)...)
		if slices.Equal(args, m.args) {
			continue
		}
		m.stop()
		<-m.done
		if c, err := l.runtime.Adopt(l.appDir(m)); err == nil {
			if err := c.Remove(); err != nil {
				return err
			}
		}
		m.args, m.done = args, make(chan struct{})
		l.startApp(ctx, &g, m)
	}
	return g.Wait()
}

// zone are the internet's names as the application dns takes them.
func zone(c *cluster.Cluster) []string {
	var all []string
	for _, h := range c.Spec.Internet.Hosts {
		all = append(all, h.Name+"="+h.Address.String())
	}
	return all
}

// coreDNS are the cluster's DNS objects, one document each.
//
//go:embed dns/coredns.yaml
var coreDNS string

// dnsDelay is how long the cluster's DNS waits when the cluster is ready: what a user starts at once has the processors for itself, and half a second less to wait.
const dnsDelay = 1500 * time.Millisecond

// startDNS installs the cluster's DNS, a moment later.
func (l *lab) startDNS(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(dnsDelay):
	}
	if err := l.installDNS(ctx); err != nil && ctx.Err() == nil {
		l.log.Error("install", "err", err)
	}
}

// installDNS brings the cluster's DNS into the API, as AKS's add-on manager does: what is there is made the same.
func (l *lab) installDNS(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	docs, err := dnsObjects(l.cluster)
	if err != nil {
		return fmt.Errorf("cluster DNS: %w", err)
	}
	for _, doc := range docs {
		if err := applyObject(ctx, l.client.CoreV1().RESTClient(), doc); err != nil {
			return fmt.Errorf("cluster DNS: %w", err)
		}
	}
	return nil
}

func dnsObjects(c *cluster.Cluster) ([]string, error) {
	t, err := template.New("coredns.yaml").Option("missingkey=error").Parse(coreDNS)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{"Address": c.Spec.Network.DNSServiceIP, "Domain": clusterDomain, "Version": coreDNSVersion})
	return strings.Split(b.String(), "\n---\n"), err
}

// apiPaths are where the API has the kinds of objects that applyObject takes, %s the namespace.
var apiPaths = map[string]string{
	"v1/ServiceAccount":  "/api/v1/namespaces/%s/serviceaccounts/",
	"v1/ConfigMap":       "/api/v1/namespaces/%s/configmaps/",
	"v1/Service":         "/api/v1/namespaces/%s/services/",
	"apps/v1/Deployment": "/apis/apps/v1/namespaces/%s/deployments/",
	"rbac.authorization.k8s.io/v1/ClusterRole":        "/apis/rbac.authorization.k8s.io/v1/clusterroles/%.0s",
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/%.0s",
}

// applyObject makes one object what the document says, by server-side apply. kube-system itself comes a moment after the API server is ready.
func applyObject(ctx context.Context, api rest.Interface, doc string) error {
	var o struct {
		APIVersion, Kind string
		Metadata         struct{ Namespace, Name string }
	}
	if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
		return err
	}
	path, known := apiPaths[o.APIVersion+"/"+o.Kind]
	if !known {
		return fmt.Errorf("apply %s %s: unknown kind", o.Kind, o.Metadata.Name)
	}
	path = fmt.Sprintf(path, o.Metadata.Namespace) + o.Metadata.Name
	for {
		err := api.Patch(types.ApplyPatchType).AbsPath(path).Param("fieldManager", "packetwalk").Param("force", "true").Body([]byte(doc)).Do(ctx).Error()
		if err == nil {
			return nil
		}
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("apply %s %s: %w", o.Kind, o.Metadata.Name, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("apply %s %s: %w", o.Kind, o.Metadata.Name, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
