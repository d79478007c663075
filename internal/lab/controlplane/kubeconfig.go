package controlplane

import (
	"time"

	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// Kubeconfig issues a client certificate for user and returns a kubeconfig, YAML, that holds it and the authority's certificate:
// one file that works from anywhere that reaches server, a URL.
func (a *Authority) Kubeconfig(cluster, server string, user User, now time.Time) ([]byte, error) {
	pair, err := a.Client(user, now)
	if err != nil {
		return nil, err
	}
	return yaml.Marshal(clientcmd.Config{
		APIVersion: "v1",
		Kind:       "Config",
		Clusters: []clientcmd.NamedCluster{{Name: cluster,
			Cluster: clientcmd.Cluster{Server: server, CertificateAuthorityData: a.Certificate}}},
		AuthInfos: []clientcmd.NamedAuthInfo{{Name: user.Name,
			AuthInfo: clientcmd.AuthInfo{ClientCertificateData: pair.Certificate, ClientKeyData: pair.Key}}},
		Contexts:       []clientcmd.NamedContext{{Name: cluster, Context: clientcmd.Context{Cluster: cluster, AuthInfo: user.Name}}},
		CurrentContext: cluster,
	})
}
