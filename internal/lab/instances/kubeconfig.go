package instances

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// A kubeconfig is one that holds all that it needs (kubernetes.io, "kubeconfig (v1)"). The whole format can name programs, which client-go
// runs, and files, which it reads: of this machine, as root.
type kubeconfig struct {
	APIVersion     string   `yaml:"apiVersion"`
	Kind           string   `yaml:"kind"`
	Preferences    struct{} `yaml:"preferences"`
	CurrentContext string   `yaml:"current-context"`
	Clusters       []struct {
		Name    string `yaml:"name"`
		Cluster struct {
			Server                   string `yaml:"server"`
			CertificateAuthorityData string `yaml:"certificate-authority-data"`
		} `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User struct {
			Token                 string `yaml:"token,omitempty"`
			ClientCertificateData string `yaml:"client-certificate-data,omitempty"`
			ClientKeyData         string `yaml:"client-key-data,omitempty"`
		} `yaml:"user"`
	} `yaml:"users"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
}

// ownKubeconfig gives a kubeconfig anew, in these fields; others are an error.
func ownKubeconfig(text []byte) ([]byte, error) {
	var k kubeconfig
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&k); err != nil {
		return nil, fmt.Errorf("not a kubeconfig that holds all it needs: %w", err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, errors.New("not a kubeconfig, but several documents")
	}
	if len(k.Clusters) == 0 || len(k.Users) == 0 || len(k.Contexts) == 0 {
		return nil, errors.New("not a kubeconfig: cluster, user or context is missing")
	}
	return yaml.Marshal(k)
}
