package kubelet

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/pods/podspec"
)

// hostname is a pod's: spec.hostname or its name, cut to 63 bytes as upstream does, in whole where the pod asks for that; a pod on the
// host's network has the node's.
func hostname(pod *corev1.Pod, node, domain string) string {
	switch {
	case pod.Spec.HostnameOverride != nil:
		return *pod.Spec.HostnameOverride
	case pod.Spec.HostNetwork:
		return node
	case isTrue(pod.Spec.SetHostnameAsFQDN) && pod.Spec.Subdomain != "":
		return fqdn(pod, domain)
	}
	return shortName(cmp.Or(pod.Spec.Hostname, pod.Name))
}

func shortName(name string) string {
	if len(name) > 63 {
		name = strings.TrimRight(name[:63], "-.")
	}
	return name
}

// fqdn is the name that a pod with a subdomain has in DNS, if there is a Service of that name.
func fqdn(pod *corev1.Pod, domain string) string {
	return fmt.Sprintf("%s.%s.%s.svc.%s", shortName(cmp.Or(pod.Spec.Hostname, pod.Name)), pod.Spec.Subdomain, pod.Namespace, domain)
}

// hostsFile is /etc/hosts as a kubelet writes it (pkg/kubelet/kubelet_pods.go: managedHostsFileContent).
func hostsFile(pod *corev1.Pod, ips []string, node, domain string) []byte {
	var b strings.Builder
	name := hostname(pod, node, domain)
	if isTrue(pod.Spec.SetHostnameAsFQDN) && !pod.Spec.HostNetwork {
		name = shortName(cmp.Or(pod.Spec.Hostname, pod.Name))
	}
	b.WriteString("# Kubernetes-managed hosts file")
	if pod.Spec.HostNetwork {
		b.WriteString(" (host network)")
	}
	b.WriteString(".\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
	for _, ip := range ips {
		b.WriteString(ip)
		if pod.Spec.Subdomain != "" && !pod.Spec.HostNetwork {
			b.WriteString("\t" + fqdn(pod, domain))
		}
		b.WriteString("\t" + name + "\n")
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
		}
	}
	return []byte(b.String())
}

// resolvConf is a pod's /etc/resolv.conf.
func resolvConf(pod *corev1.Pod, r podspec.Resolver) []byte {
	servers, search, options := r.DNS(pod)
	var b strings.Builder
	if len(search) > 0 {
		b.WriteString("search " + strings.Join(search, " ") + "\n")
	}
	for _, s := range servers {
		b.WriteString("nameserver " + s + "\n")
	}
	if len(options) > 0 {
		b.WriteString("options " + strings.Join(options, " ") + "\n")
	}
	return []byte(b.String())
}
