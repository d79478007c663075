package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"packetwalk.dev/internal/pods/podspec"
)

// Shared is what all kubelets of a cluster in one process have in common: informers of ConfigMaps, Secrets, Services and Nodes, the events'
// way to the API server, and how much is done at once.
type Shared struct {
	client    kubernetes.Interface
	factory   informers.SharedInformerFactory
	broadcast record.EventBroadcaster
	sandboxes slots
	starts    slots
	measures  slots

	troubles troubles

	mu       sync.Mutex
	kubelets map[*Kubelet]bool
}

// Fault is why objects that all kubelets need cannot be followed, joined; nil where they are.
func (s *Shared) Fault() error { return s.troubles.lasting() }

// NewShared makes what the kubelets of one cluster share. Run must be called before theirs.
func NewShared(client kubernetes.Interface) *Shared {
	s := &Shared{
		client:    client,
		factory:   newFactory(client),
		broadcast: record.NewBroadcasterWithCorrelatorOptions(record.CorrelatorOptions{BurstSize: 100}),
		// Starting is mostly fork, exec and mount: more at once than this only makes all slower. Containers do not wait behind the sandboxes of
		// pods that come after theirs: what has begun is done first.
		sandboxes: make(slots, 2*runtime.GOMAXPROCS(0)),
		starts:    newStarts(),
		// Each may have some hundred directories open, and remembers files of several names.
		measures: make(slots, 16),
		kubelets: make(map[*Kubelet]bool),
	}
	core := client.CoreV1()
	s.watch(follow(s.factory, &corev1.ConfigMap{}, s.troubles.note, core.ConfigMaps("").List, core.ConfigMaps("").Watch), "ConfigMap")
	s.watch(follow(s.factory, &corev1.Secret{}, s.troubles.note, core.Secrets("").List, core.Secrets("").Watch), "Secret")
	s.watch(follow(s.factory, &corev1.Node{}, s.troubles.note, core.Nodes().List, core.Nodes().Watch), "Node")
	follow(s.factory, &corev1.Service{}, s.troubles.note, core.Services("").List, core.Services("").Watch)
	return s
}

func newStarts() slots { return make(slots, 2*runtime.GOMAXPROCS(0)) }

// newFactory makes informers whose objects have no managed fields: they are half of a pod.
func newFactory(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(func(o any) (any, error) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
		return o, nil
	}))
}

// Run keeps the informers and events going until ctx ends.
func (s *Shared) Run(ctx context.Context) {
	s.factory.Start(ctx.Done())
	s.broadcast.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: s.client.CoreV1().Events("")})
	<-ctx.Done()
	s.broadcast.Shutdown()
	s.factory.Shutdown()
}

func (s *Shared) synced(ctx context.Context) error {
	core := s.factory.Core().V1()
	if !cache.WaitForCacheSync(ctx.Done(), core.ConfigMaps().Informer().HasSynced, core.Secrets().Informer().HasSynced,
		core.Services().Informer().HasSynced, core.Nodes().Informer().HasSynced) {
		return fmt.Errorf("wait for ConfigMaps, Secrets, Services and Nodes: %w", ctx.Err())
	}
	return nil
}

// watch tells the kubelets of objects that changed or went.
func (s *Shared) watch(informer cache.SharedIndexInformer, kind string) {
	tell := func(o any, gone bool) {
		if d, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = d.Obj
		}
		m, err := meta.Accessor(o)
		if err != nil {
			return
		}
		for _, k := range s.list() {
			k.changed(kind, m.GetNamespace(), m.GetName(), gone)
		}
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { tell(o, false) },
		UpdateFunc: func(_, o any) { tell(o, false) },
		DeleteFunc: func(o any) { tell(o, true) },
	})
}

func (s *Shared) list() []*Kubelet {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*Kubelet, 0, len(s.kubelets))
	for k := range s.kubelets {
		list = append(list, k)
	}
	return list
}

func (s *Shared) register(k *Kubelet, in bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if in {
		s.kubelets[k] = true
	} else {
		delete(s.kubelets, k)
	}
}

// slots are how many may do something heavy at once.
type slots chan struct{}

// take waits for the right to do it; the function returned gives it back.
func (s slots) take(ctx context.Context) (release func(), err error) {
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// takeBoth takes of a node's slots and then of those of all nodes, which it gives back after most at the latest: what takes longer waits
// for something, as where a pod stops what begins in its node, and holds up that node alone.
func takeBoth(ctx context.Context, node, all slots, most time.Duration) (release func(), err error) {
	own, err := node.take(ctx)
	if err != nil {
		return nil, err
	}
	shared, err := all.take(ctx)
	if err != nil {
		own()
		return nil, err
	}
	shared = sync.OnceFunc(shared)
	timer := time.AfterFunc(most, shared)
	return func() {
		timer.Stop()
		shared()
		own()
	}, nil
}

func (s *Shared) data(namespace string, o podspec.Object, binary bool) (map[string][]byte, error) {
	cached, api := s.factory.Core().V1(), s.client.CoreV1()
	if o.Kind == podspec.Secret {
		secret, err := lookUp(o.Name, cached.Secrets().Lister().Secrets(namespace).Get, api.Secrets(namespace).Get)
		if err != nil {
			return nil, err
		}
		return secret.Data, nil
	}
	m, err := lookUp(o.Name, cached.ConfigMaps().Lister().ConfigMaps(namespace).Get, api.ConfigMaps(namespace).Get)
	if err != nil {
		return nil, err
	}
	return podspec.ConfigMapData(m, binary), nil
}

// lookUp asks the cache, and the API for what the cache does not have. It may be behind: a pod and its ConfigMap are often made in one
// breath.
func lookUp[T any](name string, cache func(string) (T, error), api func(context.Context, string, metav1.GetOptions) (T, error)) (T, error) {
	found, err := cache(name)
	if !apierrors.IsNotFound(err) {
		return found, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return api(ctx, name, metav1.GetOptions{})
}

func (s *Shared) token(ctx context.Context, pod *corev1.Pod, audience string, lifetime time.Duration) (*authv1.TokenRequestStatus, error) {
	seconds := int64(lifetime / time.Second)
	req := &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if audience != "" {
		req.Spec.Audiences = []string{audience}
	}
	name := cmp.Or(pod.Spec.ServiceAccountName, "default")
	resp, err := s.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, name, req, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	if resp == nil || resp.Status.Token == "" {
		return nil, errors.New("the API server gave no token")
	}
	return &resp.Status, nil
}

// services lists those whose variables a pod of the namespace gets.
func (s *Shared) services(namespace string) ([]*corev1.Service, error) {
	lister := s.factory.Core().V1().Services().Lister()
	list, err := lister.Services(namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	if master, err := lister.Services(corev1.NamespaceDefault).Get("kubernetes"); err == nil && namespace != corev1.NamespaceDefault {
		list = append(list, master)
	}
	return list, nil
}

// recorder makes a node's event recorder.
func (s *Shared) recorder(node string) record.EventRecorder {
	return s.broadcast.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "kubelet", Host: node})
}
