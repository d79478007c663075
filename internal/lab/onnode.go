package lab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/release"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/pods/container"
)

// onNode runs "packetwalk on-node serve" in place of packetwalk's own container on a light node (kubectl packetwalk starts it): beside the
// node, and about the node's namespaces alone.
func (l *nodes) onNode(n *node) func(context.Context, string, []string, container.Streams) (bool, error) {
	serve := []string{"packetwalk", "on-node", "serve"}
	return func(ctx context.Context, image string, args []string, s container.Streams) (bool, error) {
		if !strings.HasPrefix(image, release.Repository+":") || len(args) < len(serve) || !slices.Equal(args[:len(serve)], serve) {
			return false, nil
		}
		cmd := exec.CommandContext(ctx, l.bin.Packetwalk, "on-node", "serve", "--node", n.Name, "--lab", l.dir.Name())
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = s.Stdin, s.Stdout, s.Stderr, time.Second
		return true, cmd.Run()
	}
}

// NodeHosts finds the hosts of one light node of a lab: the node and its pods, with the path of the network namespace of each.
func NodeHosts(ctx context.Context, d Dir, node string) (capture.Origin, map[string]string, error) {
	pods, err := kernel.MountedNamespaces(filepath.Join(d.PodNetNSDir(), node))
	if err != nil {
		return capture.Origin{}, nil, fmt.Errorf("pods of %s: %w", node, err)
	}
	paths := map[string]string{"node/" + node: d.NetNS(node)}
	for path := range pods {
		if namespace, name, ok := strings.Cut(filepath.Base(path), "_"); ok {
			paths["pod/"+namespace+"/"+name] = path
		}
	}
	return dump.Origin(ctx, paths, ""), paths, nil
}
