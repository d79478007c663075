package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/cluster/onnode"
)

// Cluster is one run on a cluster. It is safe for concurrent use. Close takes away what it made.
type Cluster struct {
	client  kubernetes.Interface
	config  *rest.Config
	options Options
	run     string

	made  sync.Once // the namespace
	ready error

	mu     sync.Mutex
	nodes  map[string]*node
	closed bool
	unread map[string]string // nodes that are not read, and why
}

// node is one node's pod and conversation, once.
type node struct {
	number int // of its Job
	once   sync.Once
	talk   *onnode.Node
	err    error
}

// Requests to the API server are bounded by this where nothing else is said.
const requestTime = 30 * time.Second

// Open prepares a run on the cluster of a configuration. Nothing is asked or made yet.
func Open(config *rest.Config, o Options) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.UserAgent = -1, 0, "packetwalk"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Cluster{client: client, config: config, options: o, run: newRun(), nodes: map[string]*node{}, unread: map[string]string{}}, nil
}

// Plan is what a run makes for some nodes, in order: for --dry-run.
func Plan(o Options, nodes ...string) []runtime.Object {
	objects := []runtime.Object{namespace(), serviceAccount()}
	for i, name := range nodes {
		objects = append(objects, o.job("run", i+1, name))
	}
	return objects
}

// prepare makes the namespace and what is in it for all nodes. A namespace of an earlier run that is about to go is waited for.
func (c *Cluster) prepare(ctx context.Context) error {
	c.made.Do(func() { c.ready = c.makeNamespace(ctx) })
	return c.ready
}

func (c *Cluster) makeNamespace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.start())
	defer cancel()
	for {
		ns, err := c.client.CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = c.client.CoreV1().Namespaces().Create(ctx, namespace(), metav1.CreateOptions{})
		case err == nil && ns.DeletionTimestamp != nil:
			if err := pause(ctx, 200*time.Millisecond); err != nil {
				return fmt.Errorf("namespace %s of an earlier run is still being deleted; try again in a minute", Namespace)
			}
			continue
		}
		if err == nil {
			_, err = c.client.CoreV1().ServiceAccounts(Namespace).Create(ctx, serviceAccount(), metav1.CreateOptions{})
		}
		switch {
		case err == nil || apierrors.IsAlreadyExists(err) && ns != nil && ns.Name != "":
			return nil
		case apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
			// another run makes it or takes it away at this moment
			if pause(ctx, 100*time.Millisecond) == nil {
				continue
			}
		}
		return explain(err)
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Node is the conversation with a node, whose pod is started the first time that it is asked for.
func (c *Cluster) Node(ctx context.Context, name string) (*onnode.Node, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil, errors.New("the run is over")
	}
	n := c.nodes[name]
	if n == nil {
		n = &node{number: len(c.nodes) + 1}
		c.nodes[name] = n
	}
	c.mu.Unlock()
	n.once.Do(func() {
		if n.talk, n.err = c.start(ctx, n.number, name); n.err != nil {
			n.err = fmt.Errorf("node %s: %w", name, n.err)
			return
		}
		go keepAlive(n.talk)
	})
	return n.talk, n.err
}

// keepAlive asks something now and then: proxies on the way cut streams on which nothing passes, after a minute as a rule, and some tell
// that the other end is gone only to who writes.
func keepAlive(talk *onnode.Node) {
	tick := time.NewTicker(3 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-talk.Done():
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(context.Background(), requestTime)
			if talk.Ping(ctx) != nil {
				_ = talk.Close()
			}
			cancel()
		}
	}
}

// Close ends the conversations and takes away what the run made, and the namespace where no other run has something in it. It has a time
// limit of its own, so that it does its work also when ctx has ended.
func (c *Cluster) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	nodes := c.nodes
	c.mu.Unlock()
	var ends sync.WaitGroup
	for _, n := range nodes {
		ends.Go(func() {
			if n.once.Do(func() { n.err = errors.New("the run is over") }); n.talk != nil {
				_ = n.talk.Close()
			}
		})
	}
	ends.Wait()
	made := true
	c.made.Do(func() { made = false })
	if !made {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	_, err := takeAway(ctx, c.client, c.run)
	if err != nil {
		return fmt.Errorf("%w; 'kubectl packetwalk cleanup' takes away what is left", explain(err))
	}
	return nil
}

// Cleanup takes away what runs that were cut off have left, and says what it was. Runs that still go on lose their pods.
func (c *Cluster) Cleanup(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	gone, err := takeAway(ctx, c.client, "")
	return gone, explain(err)
}

// takeAway deletes the Jobs of a run, with "" of all, with their pods, and then the namespace, if it was made by a run and no other one has
// Jobs in it. What is gone already is no error.
func takeAway(ctx context.Context, client kubernetes.Interface, run string) (gone []string, err error) {
	selector := managedBy + "=" + manager
	jobs, err := client.BatchV1().Jobs(Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	background, now := metav1.DeletePropagationBackground, int64(0)
	at := metav1.DeleteOptions{PropagationPolicy: &background, GracePeriodSeconds: &now}
	others := false
	for i := range jobs.Items {
		j := &jobs.Items[i]
		if run != "" && j.Labels[runLabel] != run {
			others = others || j.Status.CompletionTime == nil && j.DeletionTimestamp == nil
			continue
		}
		if err := client.BatchV1().Jobs(Namespace).Delete(ctx, j.Name, at); err != nil && !apierrors.IsNotFound(err) {
			return gone, err
		}
		gone = append(gone, "job/"+j.Name)
	}
	if others {
		return gone, nil
	}
	ns, err := client.CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return gone, nil
	}
	if err != nil || ns.Labels[managedBy] != manager || ns.DeletionTimestamp != nil {
		return gone, err
	}
	// Of another run that has begun meanwhile the namespace is a newer one, or its first Job waits for it to be made anew.
	at = metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &ns.UID}}
	if err := client.CoreV1().Namespaces().Delete(ctx, Namespace, at); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return gone, err
	}
	return append(gone, "namespace/"+Namespace), nil
}

// Unread says which nodes were not read, and why, sorted.
func (c *Cluster) Unread() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for name, why := range c.unread {
		all = append(all, fmt.Sprintf("node %s is not read: %s", name, why))
	}
	slices.SortFunc(all, strings.Compare)
	return all
}
