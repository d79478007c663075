package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"
)

// clientFor is a client of the lab's API server for code in the lab process, which is in the machine's own network namespace: it
// dials inside the control plane's.
func clientFor(kubeconfig []byte, dial dialFunc) (*kubernetes.Clientset, error) {
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
func listenForwarder(d Dir) (net.Listener, error) {
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

// waitDefaultAccount waits until pods can be made in namespace default: the service account admission refuses them before the
// controller manager has made the account.
func waitDefaultAccount(ctx context.Context, client kubernetes.Interface) error {
	accounts := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	only := fields.OneTermEqualSelector("metadata.name", "default").String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = only
			return accounts.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = only
			return accounts.Watch(ctx, o)
		},
	}
	_, err := watchtools.UntilWithSync(ctx, lw, &corev1.ServiceAccount{}, nil, func(e watch.Event) (bool, error) {
		return e.Type == watch.Added || e.Type == watch.Modified, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the service account default/default: %w", err)
	}
	return nil
}
