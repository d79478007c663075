package usercluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/apiobjects"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/witness"
)

// View is a cluster's nodes and pods as hosts: where each is, by the API's objects.
type View struct {
	cluster *Cluster
	ctx     context.Context
	lists   map[string][]byte
	unread  error
	objects snapshot.Objects
	on      map[string]string // hosts' nodes
	off     map[string]string // the same of hosts on nodes that are not read
}

// Look reads the API's objects. Hosts are the nodes, and the running pods with a network of their own; their states are read when they are
// asked for, on their nodes, for as long as ctx lasts.
func (c *Cluster) Look(ctx context.Context) (*View, error) {
	v := &View{cluster: c, ctx: ctx, on: map[string]string{}, off: map[string]string{}}
	var nodes *corev1.NodeList
	var problem error
	var both sync.WaitGroup
	listing, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	both.Go(func() { nodes, problem = c.client.CoreV1().Nodes().List(listing, metav1.ListOptions{}) })
	v.lists, v.unread = apiobjects.FetchBy(ctx, c.bounded, requestTime)
	both.Wait()
	if problem != nil {
		return nil, explain(problem)
	}
	v.unread = explain(v.unread)
	if v.lists["pods.json"] == nil { // by which hosts are found: half a cluster would look like a whole one
		return nil, v.unread
	}
	var unreadable error
	if v.objects, unreadable = capture.ReadObjects(v.lists); unreadable != nil {
		return nil, unreadable
	}
	at := map[string]map[string]string{} // where the hosts of a node are noted
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if why := unreadableNode(n); why != "" {
			c.unread[n.Name], at[n.Name] = why, v.off
		} else {
			at[n.Name] = v.on
		}
		at[n.Name]["node/"+n.Name] = n.Name
	}
	for _, p := range v.objects.Pods {
		if host := "pod/" + p.Namespace + "/" + p.Name; !p.HostNetwork && at[p.Node] != nil && capture.HostName(host) {
			at[p.Node][host] = p.Node
		}
	}
	return v, nil
}

// unreadableNode returns why a node's state is not read; "" where it is.
func unreadableNode(n *corev1.Node) string {
	switch {
	case !capture.HostName("node/" + n.Name):
		return "its name is none"
	case n.Labels[corev1.LabelOSStable] == "windows" || n.Status.NodeInfo.OperatingSystem == "windows":
		return "it runs Windows, whose network packetwalk does not know"
	case n.Labels[virtualLabel] == "virtual-kubelet":
		return "it is a virtual node: its pods run on machines of the provider's"
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return "it is not ready: " + termsafe.Line(condition.Message)
		}
	}
	return ""
}

// Nodes returns the names of the nodes that can be read.
func (v *View) Nodes() []string {
	var names []string
	for host := range v.on {
		if name, ok := strings.CutPrefix(host, "node/"); ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Refused returns why an end cannot be read that is a pod, or a node: where its node is not read. It is "" where it can.
func (v *View) Refused(kind, namespace, name string) string {
	node := name
	if kind == "pod" {
		i := slices.IndexFunc(v.objects.Pods, func(p snapshot.Pod) bool { return p.Namespace == namespace && p.Name == name })
		if i < 0 {
			return ""
		}
		node = v.objects.Pods[i].Node
	}
	if why := v.cluster.whyUnread(node); why != "" {
		return fmt.Sprintf("node %s is not read: %s", node, why)
	}
	return ""
}

// whyUnread returns why a node is not read; "" where it is.
func (c *Cluster) whyUnread(node string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unread[node]
}

// NodeOf returns the node that a host is on; "" where it is on none.
func (v *View) NodeOf(host string) string { return v.on[host] }

// startsAtOnce are started, or deleted, at the same time.
const startsAtOnce = 16

// Start starts the pods on some nodes side by side, before any others, and gives the nodes whose pods run. The error is what is wrong with
// the others.
func (v *View) Start(ctx context.Context, nodes []string) (started []string, err error) {
	v.cluster.options = v.cluster.options.ForCapture(len(nodes))
	errs := make([]error, len(nodes))
	var g errgroup.Group
	g.SetLimit(startsAtOnce)
	for i, name := range nodes {
		g.Go(func() error {
			_, errs[i] = v.cluster.Node(ctx, name)
			return nil
		})
	}
	_ = g.Wait()
	for i, name := range nodes {
		if errs[i] == nil {
			started = append(started, name)
		}
	}
	return started, cmp.Or(ctx.Err(), firstOf(errs))
}

// firstOf returns an error, and how many more there are: with many nodes it is the same with all of them as a rule.
func firstOf(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (and %d more)", errs[0], len(errs)-1)
}

// UnreadNodes says of the nodes that cannot be read why that is.
func (v *View) UnreadNodes() []string { return v.cluster.Unread() }

// Unread returns why some kinds of objects are unknown; nil where all are known.
func (v *View) Unread() error { return v.unread }

// Objects returns the API's.
func (v *View) Objects() snapshot.Objects { return v.objects }

// Origin gives the hosts of some nodes, or of all that can be read without any.
func (v *View) Origin(nodes ...string) capture.Origin {
	o := capture.Origin{Hosts: map[string]capture.NetNS{}, Fetch: v.fetch}
	o.Lists = func() (map[string][]byte, error) { return maps.Clone(v.lists), v.unread }
	chosen := map[string]bool{}
	for _, n := range nodes {
		chosen[n] = true
	}
	for host, node := range v.on {
		if len(nodes) == 0 || chosen[node] {
			o.Hosts[host] = capture.NetNS{Machine: node}
		}
	}
	return o
}

// fetchTime bounds the reading of one host: tools of a large node take their time, and so does a slow way to it.
const fetchTime = 5 * time.Minute

// fetch reads a host on its node.
func (v *View) fetch(host string) (*capture.Raw, error) {
	node, ok := v.on[host]
	if !ok {
		return nil, fmt.Errorf("host %q: %w", host, fs.ErrNotExist)
	}
	talk, err := v.cluster.Node(v.ctx, node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(v.ctx, fetchTime)
	defer cancel()
	raw, err := talk.Fetch(ctx, host)
	if err != nil {
		if isNodeLost(err) {
			return nil, err // it names the node
		}
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	raw.Machine = node
	return raw, nil
}

// LookUp asks the resolver of a host for a name, from the host's network namespace.
func (v *View) LookUp(ctx context.Context, host, name string) (witness.Lookup, error) {
	node, ok := v.on[host]
	if !ok {
		return witness.Lookup{}, errors.New("the sender is no pod or node that can be read, whose resolver could be asked")
	}
	talk, err := v.cluster.Node(ctx, node)
	if err != nil {
		return witness.Lookup{}, err
	}
	return talk.LookUp(ctx, host, name)
}

// Place returns where packets are sent and seen at a host, for proof.Live.
func (v *View) Place(host string) (proof.Place, error) {
	node, ok := v.on[host]
	if !ok {
		return nil, fmt.Errorf("host %q: %w", host, fs.ErrNotExist)
	}
	talk, err := v.cluster.Node(v.ctx, node)
	if err != nil {
		return nil, err
	}
	return talk.Place(host), nil
}
