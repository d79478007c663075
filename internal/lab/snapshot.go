package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/kernel/dump"
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
	o := dumping(ctx, paths, "")
	o.Lists = func() (map[string][]byte, error) { return FetchLists(ctx, d.Kubeconfig()) }
	return o, nil
}

// dumping is the origin of namespaces by the paths where they are mounted; root is whose programs are run.
func dumping(ctx context.Context, paths map[string]string, root string) capture.Origin {
	dumper := &dump.Dumper{Root: root, Hosts: paths}
	o := capture.Origin{Hosts: map[string]uint64{}, Tools: func() map[string]string { return dumper.Versions(ctx) }}
	for name, path := range paths {
		if ns, err := kernel.OpenNamespace(path); err == nil {
			o.Hosts[name] = ns.Inode()
			ns.Close()
		}
	}
	o.Fetch = func(name string) (*capture.Raw, error) {
		path, ok := paths[name]
		if !ok {
			return nil, fmt.Errorf("host %q: %w", name, fs.ErrNotExist)
		}
		ns, err := kernel.OpenNamespace(path)
		if err != nil {
			return nil, fmt.Errorf("host %q: %w", name, err)
		}
		defer ns.Close()
		return dumper.All(ctx, name, ns)
	}
	return o
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
	pods, err := kernel.MountedNamespaces(d.PodNetNSDir())
	if err != nil {
		return nil, err
	}
	for path := range pods {
		// kubelet.Config.PodNetNSDir: NAMESPACE_NAME, and neither can hold a "_".
		if namespace, name, ok := strings.Cut(filepath.Base(path), "_"); ok {
			paths["pod/"+namespace+"/"+name] = path
		}
	}
	for kind, dir := range groupKinds {
		groups, err := kernel.MountedNamespaces(dir(d))
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
	for _, n := range nodesThere(c, network) {
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

// apiPatience bounds the answers of an API server: names are a help, and a walk without them is one, too.
const apiPatience = 5 * time.Second

// FetchLists gets the lists of capture.ObjectLists from the API server that a kubeconfig names, or with "" that of the pod this process
// runs in. What is not to be read, by the rights there are, is an error that names it; the other lists are there all the same.
func FetchLists(ctx context.Context, kubeconfig string) (map[string][]byte, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	config.QPS, config.Burst, config.UserAgent, config.Timeout = -1, 0, "packetwalk", apiPatience
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	answers := make([][][]byte, len(capture.ObjectLists))
	problems := make([]error, len(capture.ObjectLists))
	var g errgroup.Group
	for i, list := range capture.ObjectLists {
		g.Go(func() error {
			answers[i], problems[i] = get(ctx, client.RESTClient(), list.Paths)
			return nil
		})
	}
	_ = g.Wait()
	lists := map[string][]byte{}
	for i, list := range capture.ObjectLists {
		if problems[i] != nil {
			continue
		}
		lists[list.File], problems[i] = list.Trim(answers[i]...)
	}
	if err := unread(problems); err != nil {
		return lists, fmt.Errorf("read Kubernetes objects: %w", err)
	}
	return lists, nil
}

// unread joins what went wrong with each list. Where it is the same with all of them, nobody answers, that is said once.
func unread(problems []error) error {
	var first *url.Error
	for i, problem := range problems {
		var e *url.Error
		if !errors.As(problem, &e) || i > 0 && e.Err.Error() != first.Err.Error() {
			return errors.Join(problems...)
		}
		first = e
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("the API server does not answer: %w", first.Err)
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", kubeconfig)
}

// get reads what is at some paths of the API; one where there is nothing is left out.
func get(ctx context.Context, client rest.Interface, paths []string) ([][]byte, error) {
	var all [][]byte
	for _, path := range paths {
		answer, err := client.Get().AbsPath(path).DoRaw(ctx)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, answer)
	}
	return all, nil
}
