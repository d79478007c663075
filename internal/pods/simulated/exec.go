package simulated

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	vkapi "github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/pods/command"
	"packetwalk.dev/internal/pods/nodeapi"
	"packetwalk.dev/internal/pods/podspec"
)

// commands runs those of kubectl exec.
func (n *node) commands() command.Runner { return command.Runner{Dir: n.State, Cgroup: n.Cgroup} }

// exec runs one of the machine's programs in the pod's network namespace. It ends with the pod.
func (n *node) exec(ctx context.Context, namespace, name, _ string, args []string, client vkapi.AttachIO) error {
	p, err := n.running(namespace, name)
	if err != nil {
		return err
	}
	at := command.Place{NetNS: n.space.Path(), Hostname: name, ResolvConf: n.resolver(attachment{namespace: namespace, name: name})}
	if p.space != nil {
		at.NetNS = p.space.Path()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.servers.ctx, cancel)()
	return n.commands().Run(ctx, at, args, client.TTY(), nodeapi.StreamsOf(ctx, client))
}

// resolver is the file with a pod's resolv.conf; "" where there is none.
func (n *node) resolver(a attachment) string {
	path := resolverFile(n.State, a)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return path
}

func resolverFile(state string, a attachment) string {
	return filepath.Join(state, a.file()+".resolv.conf")
}

func removeResolver(state string, a attachment) { _ = os.Remove(resolverFile(state, a)) }

// writeResolver writes what the pod has as /etc/resolv.conf.
func (n *node) writeResolver(o *corev1.Pod) error {
	servers, search, options := podspec.Resolver{Cluster: n.ClusterDNS, Domain: "cluster.local", Node: n.NodeDNS}.DNS(o)
	var text strings.Builder
	if len(search) > 0 {
		fmt.Fprintf(&text, "search %s\n", strings.Join(search, " "))
	}
	for _, s := range servers {
		fmt.Fprintf(&text, "nameserver %s\n", s)
	}
	if len(options) > 0 {
		fmt.Fprintf(&text, "options %s\n", strings.Join(options, " "))
	}
	return atomicfile.Write(resolverFile(n.State, attachment{namespace: o.Namespace, name: o.Name}), []byte(text.String()), 0o644)
}
