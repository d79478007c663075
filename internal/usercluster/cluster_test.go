package usercluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// request is what an authorizer is asked about one request.
type request struct{ verb, group, resource, namespace, name string }

// requestRecorder collects requests, of a fake client and of an API server.
type requestRecorder struct {
	mu  sync.Mutex
	all []request
}

func (a *requestRecorder) add(r request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.all, r) {
		a.all = append(a.all, r)
	}
}

// ofClient takes a fake client's.
func (a *requestRecorder) ofClient(client *fake.Clientset) {
	for _, action := range client.Actions() {
		r := request{action.GetVerb(), action.GetResource().Group, action.GetResource().Resource, action.GetNamespace(), ""}
		if named, ok := action.(interface{ GetName() string }); ok { // get and delete
			r.name = named.GetName()
		}
		if r.resource == "namespaces" {
			r.namespace = ""
		}
		a.add(r)
	}
}

// ServeHTTP answers as an API server that has no objects and upgrades no connection. It reads paths as kube-apiserver does: /api/v1 or
// /apis/GROUP/VERSION, then [namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]. Of exec, GET is the verb get, POST create.
func (a *requestRecorder) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var q request
	if parts[0] == "apis" {
		q.group, parts = parts[1], parts[1:]
	}
	parts = parts[2:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		q.namespace, parts = parts[1], parts[2:]
	}
	q.resource = parts[0]
	switch {
	case len(parts) == 1:
		q.verb = "list"
	case r.Method == http.MethodPost:
		q.verb = "create"
	default:
		q.verb = "get"
	}
	if len(parts) > 1 {
		q.name = parts[1]
	}
	if len(parts) > 2 {
		q.resource += "/" + parts[2]
	}
	a.add(q)
	if q.verb != "list" {
		http.Error(w, "nothing here", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"items":[]}`))
}

// may reports whether a rule lets a request through.
func may(rule rbacv1.PolicyRule, r request) bool {
	return slices.Contains(rule.Verbs, r.verb) && slices.Contains(rule.APIGroups, r.group) && slices.Contains(rule.Resources, r.resource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.name))
}

// allowed reports whether the roles of Rights, bound to a user, allow a request.
func allowed(roles []runtime.Object, r request) bool {
	for _, object := range roles {
		var rules []rbacv1.PolicyRule
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			rules = role.Rules
		case *rbacv1.Role:
			if role.Namespace == r.namespace {
				rules = role.Rules
			}
		}
		if slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool { return may(rule, r) }) {
			return true
		}
	}
	return false
}

// whole drives a run through all that it asks of an API server.
func whole(t *testing.T, a *requestRecorder) {
	server := httptest.NewServer(a)
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	kept := Rights()[0]
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, kept)
	// The pod comes after its absence was looked into.
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		jobs, err := client.Tracker().List(batchv1.SchemeGroupVersion.WithResource("jobs"), batchv1.SchemeGroupVersion.WithKind("Job"), Namespace)
		if err != nil {
			return true, nil, err
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: Namespace}}
		p.Labels = jobs.(*batchv1.JobList).Items[0].Spec.Template.Labels
		running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: running}}
		return true, &corev1.EventList{}, client.Tracker().Add(p)
	})
	c := &Cluster{client: client, config: config, bounded: config, run: "a", nodes: map[string]*node{}, unread: map[string]string{}}
	c.options.Kept = true
	view, err := c.Look(t.Context())
	if err != nil || view.Unread() != nil || !slices.Equal(view.Nodes(), []string{"n"}) {
		t.Fatalf("nodes %v: %v, %v", view.Nodes(), err, view.Unread())
	}
	pod, err := c.startPod(t.Context(), 1, "n")
	if err != nil {
		t.Fatal(err)
	}
	real, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	c.client = real
	conn, err := c.exec(pod, errors.New("broken off"), "true")
	if err != nil {
		t.Fatal(err)
	}
	<-conn.over
	c.client = client
	if err := c.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.ofClient(client)
}

// TestRights: the rights that are printed are what a run needs in the namespace that comes with them, and no more.
func TestRights(t *testing.T) {
	var a requestRecorder
	whole(t, &a)
	roles := Rights()
	for _, r := range a.all {
		if !allowed(roles, r) {
			t.Errorf("no role allows %+v", r)
		}
	}
	for right := range rights(roles) {
		if !slices.ContainsFunc(a.all, func(r request) bool { return r == right || right.name == "" && r.named("") == right }) {
			t.Errorf("nothing uses the right to %+v", right)
		}
	}
}

func (r request) named(name string) request {
	r.name = name
	return r
}

// rights returns the rights of roles, one by one: with no name, of all objects.
func rights(roles []runtime.Object) map[request]bool {
	all := map[request]bool{}
	add := func(namespace string, rule rbacv1.PolicyRule) {
		for _, verb := range rule.Verbs {
			for _, resource := range rule.Resources {
				for _, name := range append(rule.ResourceNames, []string{""}[:max(0, 1-len(rule.ResourceNames))]...) {
					all[request{verb, rule.APIGroups[0], resource, namespace, name}] = true
				}
			}
		}
	}
	for _, object := range roles {
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			for _, rule := range role.Rules {
				add("", rule)
			}
		case *rbacv1.Role:
			for _, rule := range role.Rules {
				add(role.Namespace, rule)
			}
		}
	}
	return all
}

// jobOf returns a Job of a run in an administrator's namespace.
func jobOf(run, name string) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace, Labels: labels(run),
		CreationTimestamp: metav1.Now()}}
}

// made returns a namespace that a run made some time ago.
func made(name string, ago time.Duration) *corev1.Namespace {
	ns := namespace(name, strings.TrimPrefix(name, Namespace+"-"))
	ns.CreationTimestamp = metav1.NewTime(time.Now().Add(-ago))
	return ns
}

// left returns the objects that a client still sees: Jobs, and namespaces.
func left(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	var names []string
	jobs, err := client.BatchV1().Jobs("").List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs.Items {
		names = append(names, "job/"+j.Name)
	}
	namespaces, err := client.CoreV1().Namespaces().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, ns := range namespaces.Items {
		names = append(names, "namespace/"+ns.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestWhichNamespace checks which namespace a run uses. It makes its own, where no other user has rights, even if a namespace packetwalk
// exists already. Only a user who may not make one, or who asks for it, uses that one.
func TestWhichNamespace(t *testing.T) {
	forbidden := func(c *fake.Clientset) {
		c.PrependReactor("create", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("namespaces"), "", errors.New("no right"))
		})
	}
	only := func(c *fake.Clientset) { // the rights that rbac gives, and that to make namespaces
		c.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetNamespace() != Namespace, nil, apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "", errors.New("no right"))
		})
	}
	free := func(*fake.Clientset) {}
	for name, test := range map[string]struct {
		kept, there bool
		rights      func(*fake.Clientset)
		want, err   string
	}{
		"own":                  {false, true, free, "packetwalk-a", ""},
		"no right":             {false, true, forbidden, "packetwalk", ""},
		"no right in its own":  {false, true, only, "packetwalk", ""},
		"nor in another":       {false, false, only, "", "no right"},
		"no right and none":    {false, false, forbidden, "", "no right"},
		"told":                 {true, true, free, "packetwalk", ""},
		"told and there is no": {true, false, free, "", "rbac"},
	} {
		client := fake.NewClientset()
		if test.there {
			client = fake.NewClientset(Rights()[0])
		}
		test.rights(client)
		c := &Cluster{client: client, run: "a", nodes: map[string]*node{}, options: Options{Kept: test.kept}}
		err := c.prepare(t.Context())
		if c.namespace != test.want || c.own != (test.want == "packetwalk-a") || (err != nil) != (test.err != "") ||
			err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: namespace %q, own %v: %v", name, c.namespace, c.own, err)
		}
		if list, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{LabelSelector: ours}); err != nil ||
			(len(list.Items) > 0) != c.own {
			t.Errorf("%s: %d namespaces are left: %v", name, len(list.Items), err)
		}
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// clockOf lets a client's API server have a clock that is so far from this machine's.
func clockOf(client *fake.Clientset, offset time.Duration) {
	client.PrependReactor("create", "namespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
		ns := a.(clienttesting.CreateAction).GetObject().(*corev1.Namespace)
		ns.CreationTimestamp = metav1.NewTime(time.Now().Add(offset))
		return false, nil, nil
	})
}

// TestOtherClock: which runs are over is the API server's time to say, not that of the machine on which a run ends.
func TestOtherClock(t *testing.T) {
	for name, offset := range map[string]time.Duration{"behind": -48 * time.Hour, "ahead": 48 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(made("packetwalk-d", 3*time.Hour-offset), made("packetwalk-c", 25*time.Hour-offset))
			clockOf(client, offset)
			c := &Cluster{client: client, run: "a", nodes: map[string]*node{}}
			if err := errors.Join(c.prepare(t.Context()), c.Close(t.Context())); err != nil {
				t.Fatal(err)
			}
			if got, want := left(t, client), "namespace/packetwalk-d"; got != want {
				t.Errorf("%q is left, want %q", got, want)
			}
		})
	}
}

// TestTakeAway: a run takes away its own, and namespaces that runs left long ago; a cleanup takes away all that runs have made. What others
// have made stays.
func TestTakeAway(t *testing.T) {
	kept := Rights()[0]
	foreign := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: Namespace}}
	others := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "packetwalk-of-others", Labels: labels("")}}
	for name, test := range map[string]struct {
		there   []runtime.Object
		left    string // by the run "a"
		cleaned string // by a cleanup
	}{
		"nothing": {nil, "", ""},
		"of three that of a run which goes on, and an old one": {
			[]runtime.Object{others, made("packetwalk-b", 0), made("packetwalk-d", 3*time.Hour), made("packetwalk-c", 25*time.Hour)},
			"namespace/packetwalk-b namespace/packetwalk-d namespace/packetwalk-of-others", "namespace/packetwalk-of-others"},
		"administrator's": {[]runtime.Object{kept, foreign, jobOf("b", "b1")},
			"job/b1 job/foreign namespace/packetwalk", "job/foreign namespace/packetwalk"},
	} {
		client := fake.NewClientset(test.there...)
		clockOf(client, 0)
		c := &Cluster{client: client, run: "a", nodes: map[string]*node{}, options: Options{Kept: name == "administrator's"}}
		if err := c.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		job := c.options.job(c.namespace, "a", 1, "n")
		if _, err := client.BatchV1().Jobs(c.namespace).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if c.own { // the fake one does not delete what is in a namespace
			if err := client.BatchV1().Jobs(c.namespace).Delete(t.Context(), "packetwalk-a-1", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if got := left(t, client); got != test.left {
				t.Errorf("%s: %q is left, want %q", name, got, test.left)
			}
		}
		if would, err := c.Cleanup(t.Context(), CleanupOptions{DryRun: true}); err != nil || left(t, client) != test.left ||
			(len(would) > 0) != (test.left != test.cleaned) {
			t.Errorf("%s: a dry run would delete %v, %v; %q is left", name, would, err, left(t, client))
		}
		young, err := c.Cleanup(t.Context(), CleanupOptions{OlderThan: 4 * time.Hour})
		if err != nil || len(young) > 0 {
			t.Errorf("%s: with --older-than: %v, %v", name, young, err)
		}
		gone, err := c.Cleanup(t.Context(), CleanupOptions{})
		if got := left(t, client); err != nil || got != test.cleaned {
			t.Errorf("%s: after a cleanup %q is left, want %q: %v", name, got, test.cleaned, err)
		}
		again, err := c.Cleanup(t.Context(), CleanupOptions{})
		if err != nil || len(again) > 0 || (len(gone) > 0) != (test.left != test.cleaned) {
			t.Errorf("%s, again: %v and %v, %v", name, gone, again, err)
		}
		if _, err := c.Node(t.Context(), "n"); err == nil {
			t.Error("a run that is over starts a pod")
		}
	}
}
