package cluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// request is what an authorizer is asked about one request.
type request struct{ verb, group, resource, namespace, name string }

// asked collects requests, of a fake client and of an API server.
type asked struct {
	mu  sync.Mutex
	all []request
}

func (a *asked) add(r request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.all, r) {
		a.all = append(a.all, r)
	}
}

// ofClient takes a fake client's.
func (a *asked) ofClient(client *fake.Clientset) {
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

// ServeHTTP is an API server that has no objects and upgrades no connection. Paths are read as kube-apiserver does: /api/v1 or
// /apis/GROUP/VERSION, then [namespaces/NAMESPACE/]RESOURCE[/NAME[/SUBRESOURCE]]. Of exec, GET is the verb get, POST create.
func (a *asked) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// may tells whether a rule lets a request through.
func may(rule rbacv1.PolicyRule, r request) bool {
	return slices.Contains(rule.Verbs, r.verb) && slices.Contains(rule.APIGroups, r.group) && slices.Contains(rule.Resources, r.resource) &&
		(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, r.name))
}

// allowed tells whether the roles of Rights, bound to somebody, let a request through.
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
func whole(t *testing.T, a *asked) {
	server := httptest.NewServer(a)
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	// The pod comes after its absence was looked into.
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		jobs, err := client.Tracker().List(batchv1.SchemeGroupVersion.WithResource("jobs"), batchv1.SchemeGroupVersion.WithKind("Job"), Namespace)
		if err != nil {
			return true, nil, err
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: Namespace}}
		p.Labels = map[string]string{"batch.kubernetes.io/job-name": jobs.(*batchv1.JobList).Items[0].Name}
		running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: running}}
		return true, &corev1.EventList{}, client.Tracker().Add(p)
	})
	c := &Cluster{client: client, config: config, run: "a", nodes: map[string]*node{}, unread: map[string]string{}}
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

// TestRights: the rights that are printed are what a run needs, and no more. An administrator also makes the namespace and deletes it.
func TestRights(t *testing.T) {
	var a asked
	whole(t, &a)
	admin := []request{{"create", "", "namespaces", "", ""}, {"delete", "", "namespaces", "", Namespace}}
	roles := Rights()
	for _, r := range a.all {
		if !allowed(roles, r) && !slices.Contains(admin, r) {
			t.Errorf("nobody has the right to %+v", r)
		}
	}
	for _, r := range admin {
		if !slices.Contains(a.all, r) || allowed(roles, r) {
			t.Errorf("%+v: is it an administrator's?", r)
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

// rights are those of roles, one by one: with no name, of all objects.
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

// jobOf is a Job of a run, over or not.
func jobOf(run, name string, over bool) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: Namespace, Labels: labels(run)}}
	if over {
		j.Status.CompletionTime = new(metav1.Time)
	}
	return j
}

// left are the objects that a client still sees: the Jobs, and the namespace.
func left(t *testing.T, client kubernetes.Interface) (names []string) {
	t.Helper()
	jobs, err := client.BatchV1().Jobs(Namespace).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs.Items {
		names = append(names, j.Name)
	}
	if _, err := client.CoreV1().Namespaces().Get(context.Background(), Namespace, metav1.GetOptions{}); err == nil {
		names = append(names, "namespace")
	}
	return names
}

// TestTakeAway: a run takes away its own, the last one the namespace, unless an administrator made it; a cleanup takes all.
func TestTakeAway(t *testing.T) {
	foreign := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "foreign", Namespace: Namespace}}
	made := namespace()
	delete(made.Labels, managedBy)
	for name, test := range map[string]struct {
		there []runtime.Object
		run   string
		gone  string
		left  string
	}{
		"first of two": {[]runtime.Object{namespace(), jobOf("a", "a1", false), jobOf("a", "a2", false), jobOf("b", "b1", false)}, "a",
			"job/a1 job/a2", "b1 namespace"},
		"last":            {[]runtime.Object{namespace(), jobOf("b", "b1", false)}, "b", "job/b1 namespace/packetwalk", ""},
		"another is over": {[]runtime.Object{namespace(), jobOf("a", "a1", false), jobOf("b", "b1", true)}, "a", "job/a1 namespace/packetwalk", "b1"},
		"cleanup":         {[]runtime.Object{namespace(), jobOf("a", "a1", false), jobOf("b", "b1", false)}, "", "job/a1 job/b1 namespace/packetwalk", ""},
		"administrator's": {[]runtime.Object{made, foreign, jobOf("a", "a1", false)}, "a", "job/a1", "foreign namespace"},
		"nothing":         {nil, "", "", ""},
	} {
		client := fake.NewClientset(test.there...)
		gone, err := takeAway(t.Context(), client, test.run)
		if got := strings.Join(gone, " "); err != nil || got != test.gone {
			t.Errorf("%s: %q is gone, want %q: %v", name, got, test.gone, err)
		}
		if got := strings.Join(left(t, client), " "); got != test.left {
			t.Errorf("%s: %q is left, want %q", name, got, test.left)
		}
		if again, err := takeAway(t.Context(), client, test.run); err != nil || len(again) > 0 {
			t.Errorf("%s, again: %v, %v", name, again, err)
		}
	}
}

// TestTwoRuns: two runs at once share the namespace; the one that ends last takes it away.
func TestTwoRuns(t *testing.T) {
	client := fake.NewClientset()
	var runs []*Cluster
	for _, name := range []string{"a", "b"} {
		c := &Cluster{client: client, run: name, nodes: map[string]*node{}}
		if err := c.prepare(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := client.BatchV1().Jobs(Namespace).Create(t.Context(), c.options.job(name, 1, "n"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		runs = append(runs, c)
	}
	for i, want := range []string{"packetwalk-b-1 namespace", ""} {
		if err := runs[i].Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(left(t, client), " "); got != want {
			t.Errorf("after run %d: %q is left, want %q", i+1, got, want)
		}
	}
	if _, err := runs[0].Node(t.Context(), "n"); err == nil {
		t.Error("a run that is over starts a pod")
	}
}
