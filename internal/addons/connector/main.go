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
	envNodeName      = "NODE_NAME"
	envVersion       = "NODE_VERSION"
	envPodIP         = "VKUBELET_POD_IP"
	envPort          = "KUBELET_PORT"
	envEndpoint      = "AZURE_ENDPOINT"
	envSubscription  = "AZURE_SUBSCRIPTION_ID"
	envResourceGroup = "ACI_RESOURCE_GROUP"
	envRegion        = "ACI_REGION"
	envVNetGroup     = "ACI_VNET_RESOURCE_GROUP"
	envVNet          = "ACI_VNET_NAME"
	envSubnet        = "ACI_SUBNET_NAME"
	envKubeDNS       = "KUBE_DNS_IP"
	envDomain        = "CLUSTER_DOMAIN"
	envClusterCIDR   = "CLUSTER_CIDR"
	envProxyRules    = "KUBE_PROXY_RULES"
	// envCredentials is a directory with the files below.
	envCredentials = "AZURE_CREDENTIALS_DIR"
)

// The files of envCredentials.
const (
	fileToken      = "token"                 // the bearer token for Azure
	fileCA         = "ca.crt"                // that has signed the certificate of Azure's endpoint
	fileKubeconfig = "kube-proxy.kubeconfig" // of the kube-proxy extension
)

// Main runs the connector: settings from the environment, Kubernetes by the pod's service account.
func Main(ctx context.Context, getenv func(string) string, log *slog.Logger) error {
	e := environment{get: getenv}
	credentials := e.text(envCredentials)
	cfg := config{
		NodeName: e.text(envNodeName), Version: e.text(envVersion), Address: e.address(envPodIP), Port: e.parseNumber(envPort),
		Location: e.text(envRegion),
		KubeDNS:  e.address(envKubeDNS), ClusterDomain: e.text(envDomain), Log: log,
		SubnetID: fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/Microsoft.Network/virtualNetworks/%s/subnets/%s",
			e.text(envSubscription), e.text(envVNetGroup), e.text(envVNet), e.text(envSubnet)),
	}
	endpoint, subscription, group := e.text(envEndpoint), e.text(envSubscription), e.text(envResourceGroup)
	cidr, rules := e.text(envClusterCIDR), e.text(envProxyRules)
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
	azureCA, err := pool(filepath.Join(credentials, fileCA))
	if err != nil {
		return err
	}
	token := func() (string, error) {
		text, err := os.ReadFile(filepath.Join(credentials, fileToken))
		return strings.TrimSpace(string(text)), err
	}
	cfg.ACI = aci.NewClient(endpoint, subscription, group, token, &tls.Config{RootCAs: azureCA, MinVersion: tls.VersionTLS12})
	kubeconfig, err := os.ReadFile(filepath.Join(credentials, fileKubeconfig))
	if err != nil {
		return err
	}
	cfg.Extension = proxyExtension(cfg.NodeName, cidr, rules, cfg.Version, base64.StdEncoding.EncodeToString(kubeconfig))
	if cfg.Certificate, err = requestCertificate(ctx, cfg.Client, cfg.NodeName, cfg.Address); err != nil {
		return err
	}
	return newConnector(cfg).Run(ctx)
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

func (e *environment) parseNumber(name string) int {
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
