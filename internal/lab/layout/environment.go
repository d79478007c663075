package layout

import (
	"slices"
	"strings"
)

// ClientEnvironment returns environ with the variables replaced by which kubectl and other clients choose a cluster, so that they reach
// this lab whatever the caller's environment and home directory say:
//
//   - KUBECONFIG is the lab's (client-go: tools/clientcmd/loader.go).
//   - KUBERNETES_MASTER and the other KUBERNETES_ variables are removed (client-go: tools/clientcmd/client_config.go, rest/config.go).
//   - KUBERC is off: ~/.kube/kuberc can give every command another cluster by default flags and aliases (kubectl: pkg/kuberc/kuberc.go).
//   - KUBECACHEDIR is the lab's: what a cluster serves is cached by its address, and labs reuse ports (cli-runtime:
//     pkg/genericclioptions/config_flags.go). So root writes nothing into the caller's ~/.kube/cache.
func (d Dir) ClientEnvironment(environ []string) []string {
	env := slices.DeleteFunc(slices.Clone(environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return strings.HasPrefix(name, "KUBERNETES_") ||
			slices.Contains([]string{"KUBECONFIG", "KUBERC", "KUBECACHEDIR"}, name)
	})
	return append(env, "KUBECONFIG="+d.Kubeconfig(), "KUBERC=off", "KUBECACHEDIR="+d.Path("kubectl"))
}

// HostEnvironment returns environ for a command in the network of one of the lab's hosts, which no proxy of the machine's reaches.
func (d Dir) HostEnvironment(environ []string) []string {
	return d.ClientEnvironment(withoutProxies(environ))
}

// ServerEnvironment returns environ without the variables that configure the lab's own components: etcd and Kubernetes read flags and
// feature gates from it (etcd: server/etcdmain/config.go; client-go: features/envvar.go), and would ask a proxy for the API server's
// address.
func ServerEnvironment(environ []string) []string {
	return slices.DeleteFunc(withoutProxies(environ), func(variable string) bool {
		for _, prefix := range []string{"KUBERNETES_", "KUBE_", "KUBECONFIG=", "ETCD_"} {
			if strings.HasPrefix(variable, prefix) {
				return true
			}
		}
		return false
	})
}

// withoutProxies returns environ without the variables that name a proxy (golang.org/x/net/http/httpproxy; curl(1), ENVIRONMENT).
func withoutProxies(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains([]string{"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}, strings.ToUpper(name))
	})
}
