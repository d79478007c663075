package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/source"
)

// fakeContainer runs until it is told to exit.
type fakeContainer struct {
	spec    container.Spec
	started time.Time
	done    chan struct{}
	once    sync.Once
	exit    container.Exit
	stops   chan time.Duration // each Stop's grace
	limited chan cgroup.Limits // each Limit's
	tight   bool               // it takes no limits
	deaf    bool               // it ignores SIGTERM
	hasTime bool               // its start had a limit
	mu      sync.Mutex
	exec    func(e container.Exec) (int, error)
}

func (c *fakeContainer) Spec() container.Spec  { return c.spec }
func (c *fakeContainer) Pid() int              { return 1 }
func (c *fakeContainer) StartedAt() time.Time  { return c.started }
func (c *fakeContainer) Done() <-chan struct{} { return c.done }
func (c *fakeContainer) Exit() container.Exit  { return c.exit }
func (c *fakeContainer) Remove() error         { return nil }

func (c *fakeContainer) Limit(l cgroup.Limits) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tight {
		return errors.New("it is in use")
	}
	c.limited <- l
	return nil
}

func (c *fakeContainer) end(code int) {
	c.once.Do(func() {
		reason := container.ReasonError
		if code == 0 {
			reason = container.ReasonCompleted
		}
		c.exit = container.Exit{Code: code, Reason: reason, StartedAt: c.started, FinishedAt: time.Now()}
		close(c.done)
	})
}

func (c *fakeContainer) Stop(ctx context.Context, grace time.Duration) error {
	c.stops <- grace
	if !c.deaf {
		c.end(0)
		return nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(grace):
	case <-c.done:
	}
	c.end(137)
	return nil
}

func (c *fakeContainer) Exec(_ context.Context, e container.Exec) (int, error) {
	c.mu.Lock()
	f := c.exec
	c.mu.Unlock()
	if f != nil {
		return f(e)
	}
	return 0, nil
}

func (c *fakeContainer) answer(f func(e container.Exec) (int, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exec = f
}

func (c *fakeContainer) Attach(context.Context, container.Streams) error { return nil }

// fakeRuntime records what was started. Containers survive in it, as processes do, when a kubelet ends.
type fakeRuntime struct {
	mu      sync.Mutex
	byDir   map[string]*fakeContainer
	started chan *fakeContainer
	fail    func(s container.Spec) error
	deaf    bool
	adopted map[string]int // by directory
}

func newFakeRuntime() *fakeRuntime {
	return &fakeRuntime{byDir: make(map[string]*fakeContainer), adopted: make(map[string]int), started: make(chan *fakeContainer, 100)}
}

func (r *fakeRuntime) Start(ctx context.Context, s container.Spec) (Container, error) {
	if r.fail != nil {
		if err := r.fail(s); err != nil {
			return nil, err
		}
	}
	c := &fakeContainer{spec: s, started: time.Now(), done: make(chan struct{}), stops: make(chan time.Duration, 10), deaf: r.deaf,
		limited: make(chan cgroup.Limits, 10)}
	_, c.hasTime = ctx.Deadline()
	r.mu.Lock()
	r.byDir[s.Dir] = c
	r.mu.Unlock()
	if filepath.Base(s.Dir) != "processes" { // the node's own
		r.started <- c
	}
	return c, nil
}

func (r *fakeRuntime) Adopt(dir string) (Container, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.adopted[dir]++
	if c := r.byDir[dir]; c != nil {
		return c, nil
	}
	return nil, container.ErrNoContainer
}

// next waits for a container to be started.
func (r *fakeRuntime) next(t *testing.T) *fakeContainer {
	t.Helper()
	select {
	case c := <-r.started:
		return c
	case <-time.After(10 * time.Second):
		t.Fatal("no container was started")
		return nil
	}
}

// fakeNS is a namespace that is the test's own; its port is any free one.
type fakeNS struct{ path string }

func (n fakeNS) Path() string            { return n.path }
func (n fakeNS) Do(f func() error) error { return f() }
func (n fakeNS) Close() error            { return nil }
func (n fakeNS) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}
func (n fakeNS) Listen(context.Context, string, string) (net.Listener, error) {
	return net.Listen("tcp", "127.0.0.1:0")
}

// fakeNetwork gives addresses in a row and remembers who has one.
type fakeNetwork struct {
	mu    sync.Mutex
	last  byte
	has   map[string]string // id → address
	fails int               // so many ADDs fail first
	maps  bool              // host ports are mapped
}

func (n *fakeNetwork) mapsPorts() bool { return n.maps }

func (n *fakeNetwork) add(_ context.Context, _ *corev1.Pod, id, _ string) ([]string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails > 0 {
		n.fails--
		return nil, errors.New("no address left")
	}
	n.last++
	ip := netip.AddrFrom4([4]byte{10, 0, 0, n.last}).String()
	n.has[id] = ip
	return []string{ip}, nil
}

func (n *fakeNetwork) del(_ context.Context, _ *corev1.Pod, id, _ string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.has, id)
	return nil
}

func (n *fakeNetwork) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.has)
}

// A bench is a kubelet with a fake runtime and network and a fake API server.
type bench struct {
	t       *testing.T
	client  *fake.Clientset
	runtime *fakeRuntime
	network *fakeNetwork
	dir     string
	k       *Kubelet
	edit    func(*bench, *Config)
	watches map[string]int // by resource, before k began
	stop    func()
}

const testNode = "node-0"

func newBench(t *testing.T, objects ...runtime.Object) *bench {
	t.Helper()
	return newBenchWith(t, func(*bench, *Config) {}, objects...)
}

func newBenchWith(t *testing.T, edit func(*bench, *Config), objects ...runtime.Object) *bench {
	t.Helper()
	b := &bench{edit: edit, t: t, client: fake.NewClientset(objects...), runtime: newFakeRuntime(),
		network: &fakeNetwork{has: map[string]string{}}, dir: t.TempDir()}
	// What the API server does and the fake does not: a deletion with grace marks the pod; tokens.
	b.client.PrependReactor("update", "pods", b.conflict)
	b.client.PrependReactor("delete", "pods", b.gracefulDelete)
	b.client.PrependReactor("create", "serviceaccounts", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "token" {
			return false, nil, nil
		}
		return true, &authv1.TokenRequest{Status: authv1.TokenRequestStatus{Token: "tok",
			ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour))}}, nil
	})
	b.start()
	return b
}

// conflict refuses an update of a pod that was replaced, by its UID; an update of a status leaves the rest of the pod as it is.
func (b *bench) conflict(a k8stesting.Action) (bool, runtime.Object, error) {
	pod := a.(k8stesting.UpdateAction).GetObject().(*corev1.Pod)
	o, err := b.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name)
	switch {
	case apierrors.IsNotFound(err):
		return false, nil, nil // as the tracker itself will say
	case err != nil:
		return true, nil, err
	case o.(*corev1.Pod).UID != pod.UID:
		return true, nil, apierrors.NewConflict(corev1.Resource("pods"), pod.Name, errors.New("precondition failed: UID"))
	case a.GetSubresource() != "status":
		return false, nil, nil
	}
	whole := o.(*corev1.Pod).DeepCopy()
	whole.Status = *pod.Status.DeepCopy()
	return true, whole, b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), whole, pod.Namespace)
}

func (b *bench) gracefulDelete(a k8stesting.Action) (bool, runtime.Object, error) {
	d := a.(k8stesting.DeleteAction)
	o, err := b.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), d.GetNamespace(), d.GetName())
	if err != nil {
		return true, nil, err
	}
	pod := o.(*corev1.Pod).DeepCopy()
	opts := a.(k8stesting.DeleteActionImpl).DeleteOptions
	grace := int64(30)
	if opts.GracePeriodSeconds != nil {
		grace = *opts.GracePeriodSeconds
	} else if g := pod.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = *g
	}
	if grace == 0 {
		return false, nil, nil
	}
	at := metav1.NewTime(time.Now().Add(time.Duration(grace) * time.Second))
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
	return true, nil, b.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, pod.Namespace)
}

func (b *bench) start() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	shared := NewShared(b.client)
	config := Config{
		Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: testNode}, Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}}},
		Client: b.client, Shared: shared, Runtime: b.runtime, Dir: b.dir, PodNetNSDir: filepath.Join(b.dir, "netns"), NodeNS: fakeNS{"/node"},
		Distribution: func(context.Context) (string, error) { return "/nosuch", nil },
		Resolve: func(_ context.Context, r source.Request) (source.Image, error) {
			if r.Ref == "nosuch" {
				return source.Image{}, fmt.Errorf("no application for image %q: there are app", r.Ref)
			}
			return source.Image{ID: "id-" + r.Ref, App: "app"}, nil
		},
		Sandbox:     func(context.Context) (source.Image, error) { return source.Image{App: "pause"}, nil },
		NewNetNS:    func(p string) (Namespace, error) { return fakeNS{p}, nil },
		OpenNetNS:   func(p string) (Namespace, error) { return fakeNS{p}, nil },
		RemoveNetNS: func(string) error { return nil },
		ClusterDNS:  netip.MustParseAddr("10.0.0.10"),
		Log:         b.t.Logf,
	}
	b.edit(b, &config)
	k, err := New(config)
	if err != nil {
		b.t.Fatal(err)
	}
	k.net = b.network
	wait := b.begin(ctx, shared, k)
	b.stop = sync.OnceFunc(func() { cancel(); wait() })
	b.t.Cleanup(func() { b.stop() })
	b.awaitReady()
}

// create makes a pod as the scheduler leaves it.
func (b *bench) create(pod *corev1.Pod) *corev1.Pod {
	b.t.Helper()
	p, err := b.client.CoreV1().Pods(pod.Namespace).Create(context.Background(), pod, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// await waits until the pod in the API server is as wanted.
func (b *bench) await(name, what string, ok func(p *corev1.Pod) bool) *corev1.Pod {
	b.t.Helper()
	limit := time.Now().Add(15 * time.Second)
	for {
		p, err := b.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
		if err == nil && ok(p) {
			return p
		}
		if time.Now().After(limit) {
			b.t.Fatalf("pod %s: not %s: %v %+v", name, what, err, p)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (b *bench) awaitGone(name string) {
	b.t.Helper()
	limit := time.Now().Add(15 * time.Second)
	for {
		if _, err := b.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{}); err != nil &&
			b.k.Status().Pods == 0 {
			return
		}
		if time.Now().After(limit) {
			b.t.Fatalf("pod %s is still there", name)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

var podCount int

func testPod(name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	podCount++
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(fmt.Sprintf("uid-%d-%s", podCount, name))},
		Spec: corev1.PodSpec{NodeName: testNode, RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
			Containers: []corev1.Container{{Name: "app", Image: "app"}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBestEffort, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Unix(1700000000, 0))}}},
	}
	for _, e := range edit {
		e(p)
	}
	return p
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func quantity(s string) resource.Quantity { return resource.MustParse(s) }

// begin runs a kubelet with what it shares until ctx ends; wait waits for the end of both.
func (b *bench) begin(ctx context.Context, shared *Shared, k *Kubelet) (wait func()) {
	b.k, b.watches = k, b.countWatches()
	var wg sync.WaitGroup
	wg.Go(func() { shared.Run(ctx) })
	wg.Go(func() {
		if err := k.Run(ctx); !errors.Is(err, context.Canceled) {
			b.t.Errorf("run: %v", err)
		}
	})
	return wg.Wait
}

// awaitReady waits until the kubelet is ready and its watches have begun: the fake API server tells a watch nothing of what came
// between the list and the watch.
func (b *bench) awaitReady() {
	b.t.Helper()
	select {
	case <-b.k.Ready():
	case <-time.After(20 * time.Second):
		b.t.Fatal("the kubelet does not become ready")
	}
	for limit := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		now := b.countWatches()
		if !slices.ContainsFunc(watched, func(kind string) bool { return now[kind] <= b.watches[kind] }) {
			return
		}
		if time.Now().After(limit) {
			b.t.Fatalf("watches: %v, after %v", now, b.watches)
		}
	}
}

// watched is what tests change while a kubelet runs.
var watched = []string{"pods", "configmaps", "secrets", "nodes"}

// countWatches counts the watches of each resource that have begun so far. An action is seen when its reactor is done.
func (b *bench) countWatches() map[string]int {
	count := map[string]int{}
	for _, a := range b.client.Actions() {
		if a.GetVerb() == "watch" {
			count[a.GetResource().Resource]++
		}
	}
	return count
}
