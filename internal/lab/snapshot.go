package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/apiobjects"
	"packetwalk.dev/internal/kernel/dump"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/plan"
)

// Snapshot gives the states of the hosts of a running lab, by the names that snapshot.Host has. A host is dumped when it is asked for, and
// the Kubernetes objects are fetched when they are. Pods that come later are not among its hosts.
func Snapshot(ctx context.Context, d Dir) (*capture.Lazy, error) {
	o, err := Origin(ctx, d)
	if err != nil {
		return nil, err
	}
	return capture.NewSource(o), nil
}

// Origin gives the hosts of a running lab as what their tools print.
func Origin(ctx context.Context, d Dir) (capture.Origin, error) {
	paths, err := d.namespaces()
	if err != nil {
		return capture.Origin{}, err
	}
	o := dump.Origin(ctx, paths, "")
	o.Lists = func() (map[string][]byte, error) { return apiobjects.Fetch(ctx, d.Kubeconfig()) }
	return o, nil
}

// namespaces are the mounts of the lab's hosts by their full names.
func (d Dir) namespaces() (map[string]string, error) {
	kinds, err := d.kinds()
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for _, name := range d.hosts() {
		full, ok := kinds[name]
		if !ok {
			full = name
		}
		paths[full] = d.NetNS(name)
	}
	pods, err := netns.Mounted(d.PodNetNSDir())
	if err != nil {
		return nil, err
	}
	for path := range pods {
		// kubelet.Config.PodNetNSDir: NAMESPACE_NAME, and neither can hold a "_".
		if namespace, name, ok := strings.Cut(filepath.Base(path), "_"); ok {
			paths["pod/"+namespace+"/"+name] = path
		}
	}
	real, err := d.realPods()
	if err != nil {
		return nil, err
	}
	for name, pod := range real {
		paths["pod/"+name] = pod.NetNS
	}
	for kind, dir := range groupKinds {
		groups, err := netns.Mounted(dir(d))
		if err != nil {
			return nil, err
		}
		for path := range groups {
			paths[kind+"/"+filepath.Base(path)] = path
		}
	}
	return paths, nil
}

// kinds gives the full names of the hosts that the cluster's description has.
func (d Dir) kinds() (map[string]string, error) {
	source, err := readSource(d.ClusterFile())
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", d.Name(), err)
	}
	c, err := d.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", d.Name(), err)
	}
	network, err := fabric.ReadNetwork(d.fabricState())
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", d.Name(), err)
	}
	kinds := map[string]string{}
	for _, n := range plan.Nodes(c, network) {
		kinds[n.Name] = "node/" + n.Name
	}
	for _, vm := range c.Spec.Azure.VMs {
		kinds[vm.Name] = "vm/" + vm.Name
	}
	for _, h := range c.Spec.Internet.Hosts {
		kinds[h.Name] = "internet/" + h.Name
	}
	return kinds, nil
}
