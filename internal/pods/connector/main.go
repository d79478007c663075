package connector

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/azure/aci"
)

// The variables that Main reads, named as AKS's connector has them where it has them, and as this lab needs where it does not.
const (
	EnvNodeName      = "NODE_NAME"
	EnvVersion       = "NODE_VERSION"
	EnvPodIP         = "VKUBELET_POD_IP"
	EnvPort          = "KUBELET_PORT"
	EnvEndpoint      = "AZURE_ENDPOINT"
	EnvSubscription  = "AZURE_SUBSCRIPTION_ID"
	EnvResourceGroup = "ACI_RESOURCE_GROUP"
	EnvRegion        = "ACI_REGION"
	EnvVNetGroup     = "ACI_VNET_RESOURCE_GROUP"
	EnvVNet          = "ACI_VNET_NAME"
	EnvSubnet        = "ACI_SUBNET_NAME"
	EnvKubeDNS       = "KUBE_DNS_IP"
	EnvDomain        = "CLUSTER_DOMAIN"
	EnvClusterCIDR   = "CLUSTER_CIDR"
	EnvProxyRules    = "KUBE_PROXY_RULES"
	// EnvCredentials is a directory with the files below.
	EnvCredentials = "AZURE_CREDENTIALS_DIR"
)

// The files of EnvCredentials.
const (
	FileToken      = "token"                 // the bearer token for Azure
	FileCA         = "ca.crt"                // that has signed the certificate of Azure's endpoint
	FileKubeconfig = "kube-proxy.kubeconfig" // of the kube-proxy extension
)

// Main is the connector's program: settings from the environment, Kubernetes by the pod's service account.
func Main(ctx context.Context, getenv func(string) string, log *slog.Logger) error {
	e := environment{get: getenv}
	credentials := e.text(EnvCredentials)
	cfg := Config{
		NodeName: e.text(EnvNodeName), Version: e.text(EnvVersion), Address: e.address(EnvPodIP), Port: e.number(EnvPort),
		Location: e.text(EnvRegion),
		KubeDNS:  e.address(EnvKubeDNS), ClusterDomain: e.text(EnvDomain), Log: log,
		SubnetID: fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/virtualNetworks/%s/subnets/%s",
			e.text(EnvSubscription), e.text(EnvVNetGroup), e.text(EnvVNet), e.text(EnvSubnet)),
	}
	endpoint, subscription, group := e.text(EnvEndpoint), e.text(EnvSubscription), e.text(EnvResourceGroup)
	cidr, rules := e.text(EnvClusterCIDR), e.text(EnvProxyRules)
	if err := errors.Join(e.faults...); err != nil {
		return err
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Burst, config.UserAgent = -1, 0, "aci-connector-linux"
	if cfg.Client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if cfg.ClientCA, err = pool(config.CAFile); err != nil {
		return err
	}
	azureCA, err := pool(filepath.Join(credentials, FileCA))
	if err != nil {
		return err
	}
	token := func() (string, error) {
		text, err := os.ReadFile(filepath.Join(credentials, FileToken))
		return strings.TrimSpace(string(text)), err
	}
	cfg.ACI = aci.NewClient(endpoint, subscription, group, token, &tls.Config{RootCAs: azureCA, MinVersion: tls.VersionTLS12})
	kubeconfig, err := os.ReadFile(filepath.Join(credentials, FileKubeconfig))
	if err != nil {
		return err
	}
	cfg.Extension = proxyExtension(cfg.NodeName, cidr, rules, cfg.Version, base64.StdEncoding.EncodeToString(kubeconfig))
	if cfg.Certificate, err = RequestCertificate(ctx, cfg.Client, cfg.NodeName, cfg.Address); err != nil {
		return err
	}
	return New(cfg).Run(ctx)
}

// environment reads variables and gathers what is wrong with them.
type environment struct {
	get    func(string) string
	faults []error
}

func (e *environment) text(name string) string {
	v := e.get(name)
	if v == "" {
		e.faults = append(e.faults, fmt.Errorf("environment variable %s is not set", name))
	}
	return v
}

func (e *environment) address(name string) netip.Addr {
	a, err := netip.ParseAddr(e.text(name))
	if err != nil {
		e.faults = append(e.faults, fmt.Errorf("environment variable %s: %w", name, err))
	}
	return a
}

func (e *environment) number(name string) int {
	n, err := strconv.Atoi(e.text(name))
	if err != nil {
		e.faults = append(e.faults, fmt.Errorf("environment variable %s: %w", name, err))
	}
	return n
}

func pool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return p, nil
}
