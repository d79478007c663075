package controlplane

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"
)

// Port is the API server's port on its public address, TCP; AKS serves its API servers on 443.
const Port = 443

// Names of the components: the name of the process, of its log file and of the multi-call program's first argument.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
)

// Config says what control plane to run.
type Config struct {
	Dir         string       // the lab's folder, absolute; sockets lie in it, so short (a unix socket's path has at most 107 bytes)
	DataDir     string       // etcd's; empty: etcd in Dir
	LogDir      string       // of the components' logs; empty: logs in Dir
	Binary      string       // the multi-call program
	ClusterName string       // the name in kubeconfigs
	Address     netip.Addr   // the API server's public address, which it binds; TCP port 443
	ServiceCIDR netip.Prefix // the Services' addresses; its first address is the Service kubernetes
	PodCIDR     netip.Prefix // the pods' addresses when the controller manager gives each node a part of them; zero when something else does

	// EndpointsBatch is how long changes of pods are gathered before they are a change of a Service's endpoints.
	EndpointsBatch time.Duration
	// EgressSocket is a unix socket on which the caller serves HTTP CONNECT: the API server's way to kubelets, pods and Services.
	// Empty: the API server dials them itself.
	EgressSocket string
}

// Validate finds what no component could run with.
func (c Config) Validate() error {
	switch {
	case !filepath.IsAbs(c.Dir):
		return fmt.Errorf("control plane folder %q: not an absolute path", c.Dir)
	case len(c.etcdSocket()) > maxSocketPath:
		return fmt.Errorf("control plane folder %q: too long for a unix socket in it (at most %d bytes with the socket's name)", c.Dir,
			maxSocketPath)
	case !filepath.IsAbs(c.Binary):
		return fmt.Errorf("control plane program %q: not an absolute path; go run ./tools/controlplane path prints it", c.Binary)
	case !c.Address.IsValid() || c.Address.IsUnspecified():
		return errors.New("control plane: no API server address")
	case !c.ServiceCIDR.IsValid():
		return errors.New("control plane: no Service CIDR")
	case c.ServiceCIDR.Addr().Is4() != c.Address.Is4():
		// The Service kubernetes has the API server's address as endpoint, so upstream refuses the mixture.
		return fmt.Errorf("control plane: API server address %s and Service CIDR %s are not of one family", c.Address, c.ServiceCIDR)
	}
	return nil
}

// maxSocketPath is the longest path of a unix socket (unix(7): sun_path has 108 bytes, the last a zero).
const maxSocketPath = 107

// Server returns the API server's URL.
func (c Config) Server() string { return "https://" + c.serverAddress() }

// serverAddress returns the API server's address and port.
func (c Config) serverAddress() string {
	return net.JoinHostPort(c.Address.String(), strconv.Itoa(Port))
}

// KubernetesService returns the address of the Service default/kubernetes: the first of the Service CIDR.
func (c Config) KubernetesService() netip.Addr { return c.ServiceCIDR.Masked().Addr().Next() }

// PKIDir returns the folder of certificates and keys.
func (c Config) PKIDir() string { return filepath.Join(c.Dir, "pki") }

// KubeconfigPath returns where WriteFiles puts the kubeconfig of a component's identity.
func (c Config) KubeconfigPath(user User) string {
	return filepath.Join(c.Dir, "pki", user.Name+".kubeconfig")
}

// LogFile returns where a component's output goes.
func (c Config) LogFile(component string) string {
	return filepath.Join(c.logDir(), component+".log")
}

func (c Config) logDir() string { return cmp.Or(c.LogDir, filepath.Join(c.Dir, "logs")) }

func (c Config) etcdDir() string        { return cmp.Or(c.DataDir, filepath.Join(c.Dir, "etcd")) }
func (c Config) etcdSocket() string     { return filepath.Join(c.Dir, "etcd.sock") }
func (c Config) egressFile() string     { return filepath.Join(c.PKIDir(), "egress.yaml") }
func (c Config) schedulerFile() string  { return filepath.Join(c.PKIDir(), "scheduler.yaml") }
func (c Config) pki(name string) string { return filepath.Join(c.PKIDir(), name) }
