package usercluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"packetwalk.dev/internal/usercluster/remote"
)

// Cluster is one run on a cluster. It is safe for concurrent use. Close takes away what it made.
type Cluster struct {
	client  kubernetes.Interface
	config  *rest.Config // of streams
	bounded *rest.Config // of requests
	options Options
	run     string

	made      sync.Once
	ready     error
	namespace string    // that everything is made in; "" before
	own       bool      // the run has made it
	begun     time.Time // when it did, by the API server's clock

	mu     sync.Mutex
	nodes  map[string]*node
	closed bool
	unread map[string]string // nodes that are not read, and why
}

// node is one node's pod and conversation, once.
type node struct {
	number int // of its Job
	once   sync.Once
	talk   *remote.Node
	err    error
	tried  bool // talk or err is set; with the lock of Cluster
}

// requestTime bounds a request that the API server has begun to answer, or that its webhooks may delay: these take 30 s at most.
const requestTime = 30 * time.Second

// Open prepares a run on the cluster of a configuration. Nothing is asked or made yet.
func Open(config *rest.Config, o Options) (*Cluster, error) {
	return openPatiently(config, o, silence)
}

func openPatiently(config *rest.Config, o Options, patience time.Duration) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.UserAgent = -1, 0, "packetwalk"
	bounded := rest.CopyConfig(config)
	bounded.Wrap(func(next http.RoundTripper) http.RoundTripper { return &patientTransport{next, patience} })
	client, err := kubernetes.NewForConfig(bounded)
	if err != nil {
		return nil, err
	}
	return &Cluster{client: client, config: config, bounded: bounded, options: o, run: newRun(), nodes: map[string]*node{}, unread: map[string]string{}}, nil
}

// Plan returns what a run makes for some nodes, in order: for --dry-run. It is in a namespace of the run's own unless the options name the
// kept one.
func Plan(o Options, nodes ...string) []runtime.Object {
	const run = "run"
	in, objects := Namespace, []runtime.Object(nil)
	if !o.kept() {
		in = Namespace + "-" + run
		objects = append(objects, namespace(in, run))
	}
	objects = append(objects, serviceAccount(in))
	for i, name := range nodes {
		objects = append(objects, o.job(in, run, i+1, name))
	}
	return objects
}

// prepare makes what all nodes have in common.
func (c *Cluster) prepare(ctx context.Context) error {
	c.made.Do(func() { c.ready = c.makeCommon(ctx) })
	return cmp.Or(c.ready, ctx.Err())
}

// makeCommon makes the run's own namespace and what all pods have in it. No other user has rights in that namespace, and no other run waits
// for it. A user who may not create a namespace uses the one that an administrator keeps. makeCommon ignores the cancellation of ctx.
// Otherwise, what the API server makes after the client stops waiting would stay.
func (c *Cluster) makeCommon(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	var refused error
	if !c.options.kept() {
		if refused = c.makeOwn(ctx); refused == nil || !isRefused(refused) {
			return explain(refused)
		}
		if c.own { // in which nothing may be made
			_, _ = c.deleteNamespace(ctx, c.namespace)
		}
	}
	c.namespace, c.own = "", false // until it is found there is nothing to take away
	switch err := c.findKept(ctx); {
	case refused != nil && err != nil:
		return fmt.Errorf("%w; let an administrator run 'kubectl packetwalk rbac | kubectl apply -f -', and use --kept-namespace", refused)
	case err != nil:
		return explain(err)
	}
	c.namespace = Namespace
	return explainIn(c.namespace, c.makeAccount(ctx))
}

// makeOwn makes a namespace of the run's own and what all pods have in it.
func (c *Cluster) makeOwn(ctx context.Context) error {
	c.namespace = Namespace + "-" + c.run
	ns, err := c.client.CoreV1().Namespaces().Create(ctx, namespace(c.namespace, c.run), metav1.CreateOptions{})
	if c.own = err == nil || !isRefused(err); err != nil {
		return err
	}
	c.begun = ns.CreationTimestamp.Time
	return c.makeAccount(ctx)
}

func (c *Cluster) makeAccount(ctx context.Context) error {
	_, err := c.client.CoreV1().ServiceAccounts(c.namespace).Create(ctx, serviceAccount(c.namespace), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// findKept looks for an administrator's namespace.
func (c *Cluster) findKept(ctx context.Context) error {
	kept, err := c.client.CoreV1().Namespaces().Get(ctx, Namespace, metav1.GetOptions{})
	if err == nil && kept.DeletionTimestamp == nil {
		return nil
	}
	if err == nil || apierrors.IsNotFound(err) {
		return fmt.Errorf("namespace %s not found; run 'kubectl packetwalk rbac | kubectl apply -f -'", Namespace)
	}
	return err
}

// Node returns the conversation with a node, whose pod is started the first time that it is asked for.
func (c *Cluster) Node(ctx context.Context, name string) (*remote.Node, error) {
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
		if n.talk, n.err = c.start(ctx, n.number, name); n.err == nil {
			go keepAlive(n.talk, brokenError(name))
		}
		c.mu.Lock()
		n.tried = true
		c.mu.Unlock()
	})
	if n.err != nil {
		return nil, fmt.Errorf("node %s: %w", name, n.err)
	}
	return n.talk, nil
}

var errNotStarted = errors.New("no pod was started on its node")

// startError returns why a node's pod does not run; nil where it does.
func (c *Cluster) startError(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[name]; n != nil && n.tried {
		return n.err
	}
	return errNotStarted
}

// room returns how many more nodes may be read. Those whose pods do not run are not counted.
func (c *Cluster) room() int {
	if c.options.Most == 0 {
		return math.MaxInt
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	room := c.options.Most
	for _, n := range c.nodes {
		if !n.tried || n.err == nil {
			room--
		}
	}
	return max(room, 0)
}

// setError records why nodes are not started.
func (c *Cluster) setError(names []string, why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		n := &node{err: why, tried: true}
		n.once.Do(func() {})
		c.nodes[name] = n
	}
}

// keepAlive asks something now and then: proxies on the way cut streams on which nothing passes, after a minute as a rule, and some tell
// that the other end is gone only to who writes.
func keepAlive(talk *remote.Node, broken error) {
	tick := time.NewTicker(15 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-talk.Done():
			return
		case <-tick.C:
			ctx, cancel := context.WithTimeout(context.Background(), 2*requestTime)
			if talk.Ping(ctx) != nil {
				talk.Abandon(broken)
			}
			cancel()
		}
	}
}

// Close ends the conversations and takes away what the run made. It has a time limit of its own, so that it does its work also when ctx has
// ended.
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
	if c.made.Do(func() {}); c.namespace == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeAway)
	defer cancel()
	var err error
	if c.own {
		if _, err = c.deleteNamespace(ctx, c.namespace); err == nil {
			c.deleteOld(ctx)
		}
	} else {
		_, err = c.deleteJobs(ctx, runLabel+"="+c.run, CleanupOptions{})
	}
	if err != nil {
		return fmt.Errorf("%w; 'kubectl packetwalk cleanup' takes away what is left", explain(err))
	}
	return nil
}

// takeAway bounds the taking away of what a run made: a capture may have hundreds of Jobs.
const takeAway = 2 * time.Minute

// ours chooses what runs have made.
const ours = managedBy + "=" + manager

// CleanupOptions choose what a cleanup takes away.
type CleanupOptions struct {
	OlderThan time.Duration // what was made less long ago stays
	DryRun    bool          // everything stays
}

// chosen reports whether an object is old enough.
func (o CleanupOptions) chosen(object metav1.Object) bool {
	return time.Since(object.GetCreationTimestamp().Time) >= o.OlderThan
}

// Cleanup takes away what runs that were cut off have left, and says what it was. Runs that still go on lose their pods.
func (c *Cluster) Cleanup(ctx context.Context, o CleanupOptions) (gone []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, takeAway)
	defer cancel()
	gone, err = c.deleteJobs(ctx, ours, o)
	if err != nil {
		return gone, explain(err)
	}
	left, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: ours})
	if apierrors.IsForbidden(err) {
		return gone, nil // who may not list them has made none
	}
	for i := 0; err == nil && i < len(left.Items); i++ {
		ns := &left.Items[i]
		if !ofRun(ns) || !o.chosen(ns) || ns.DeletionTimestamp != nil {
			continue
		}
		deleted := o.DryRun
		if !deleted {
			deleted, err = c.deleteNamespace(ctx, ns.Name)
		}
		if deleted {
			gone = append(gone, "namespace/"+ns.Name)
		}
	}
	return gone, explain(err)
}

// longestRun is longer than any run: a capture of 5,000 nodes takes 7 hours at most, by the lives of its pods. A run that goes on may have
// no Job for a while, between those of some nodes and the next.
const longestRun = 24 * time.Hour

// deleteOld deletes the namespaces that runs have left long before this one began, by the API server's clock: this machine's may be wrong.
// It is a help only.
func (c *Cluster) deleteOld(ctx context.Context) {
	left, err := c.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		return
	}
	for i := range left.Items {
		ns := &left.Items[i]
		if !ofRun(ns) || ns.DeletionTimestamp != nil || c.begun.Sub(ns.CreationTimestamp.Time) < longestRun {
			continue
		}
		jobs, err := c.client.BatchV1().Jobs(ns.Name).List(ctx, metav1.ListOptions{})
		if err == nil && !slices.ContainsFunc(jobs.Items, func(j batchv1.Job) bool { return j.Status.Active > 0 }) {
			_, _ = c.deleteNamespace(ctx, ns.Name)
		}
	}
}

// ofRun tells of a namespace that a run has made: it is called after the run, and nothing else is.
func ofRun(ns *corev1.Namespace) bool {
	return ns.Labels[runLabel] != "" && ns.Name == Namespace+"-"+ns.Labels[runLabel]
}

// deleteJobs deletes Jobs in an administrator's namespace, with their pods. What is gone already is no error.
func (c *Cluster) deleteJobs(ctx context.Context, which string, o CleanupOptions) (gone []string, err error) {
	jobs, err := c.client.BatchV1().Jobs(Namespace).List(ctx, metav1.ListOptions{LabelSelector: which})
	if err != nil {
		return nil, err
	}
	jobs.Items = slices.DeleteFunc(jobs.Items, func(j batchv1.Job) bool { return !o.chosen(&j) || o.DryRun && j.DeletionTimestamp != nil })
	background, now := metav1.DeletePropagationBackground, int64(0)
	at := metav1.DeleteOptions{PropagationPolicy: &background, GracePeriodSeconds: &now}
	var g errgroup.Group
	g.SetLimit(startsAtOnce)
	errs := make([]error, len(jobs.Items))
	for i := range jobs.Items {
		if o.DryRun {
			break
		}
		g.Go(func() error {
			err := c.client.BatchV1().Jobs(Namespace).Delete(ctx, jobs.Items[i].Name, at)
			if !apierrors.IsNotFound(err) {
				errs[i] = err
			}
			return nil
		})
	}
	_ = g.Wait()
	for i, err := range errs {
		if err == nil {
			gone = append(gone, "job/"+jobs.Items[i].Name)
		}
	}
	return gone, firstOf(errs)
}

// deleteNamespace deletes a namespace with all that is in it; false where it is gone already, or about to go.
func (c *Cluster) deleteNamespace(ctx context.Context, name string) (bool, error) {
	err := c.client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
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
