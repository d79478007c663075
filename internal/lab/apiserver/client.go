package apiserver

import (
	"net"
	"net/netip"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"packetwalk.dev/internal/lab/layout"
)

// clientFor returns a client of the lab's API server for code in the lab process, which is in the machine's own network namespace: it
// dials inside the control plane's.
func clientFor(kubeconfig []byte, dial DialFunc) (*kubernetes.Clientset, error) {
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	config.Dial = dial
	config.QPS, config.Burst = -1, 0 // the API server's own limits are enough for a lab
	config.UserAgent = "packetwalk"
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(config)
}

// listenForwarder listens on 127.0.0.1, at the port that the kubeconfig of an earlier lab process names if it can be had.
func listenForwarder(d layout.Dir) (net.Listener, error) {
	if config, err := clientcmd.LoadFromFile(d.Kubeconfig()); err == nil {
		for _, c := range config.Clusters {
			if at, err := netip.ParseAddrPort(strings.TrimPrefix(c.Server, "https://")); err == nil {
				if l, err := net.Listen("tcp", at.String()); err == nil {
					return l, nil
				}
			}
		}
	}
	return net.Listen("tcp", "127.0.0.1:0")
}
