package usercluster

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

const (
	toRights = "'kubectl packetwalk rbac' prints the rights"
	toKept   = "--kept-namespace"
)

// refusals are the words of API servers of version 1.35, and what an error with them says beside.
var refusals = map[string]struct {
	err       error
	want, not string
}{
	"no right": {apierrors.NewForbidden(batchJobs, "", errors.New(`user "jane" cannot create resource "jobs" in API group "batch"`)), toRights, toKept},
	"quota": {apierrors.NewForbidden(batchJobs, "a", errors.New("exceeded quota: few.jobs, requested: count/jobs.batch=1, used: count/jobs.batch=9, limited: count/jobs.batch=9")),
		"ResourceQuota few.jobs leaves no room", toRights},
	"quota of limits": {apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("failed quota: cpu: must specify limits.cpu for: packetwalk")),
		"ResourceQuota cpu leaves no room", toRights},
	"limit": {apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("maximum memory usage per Container is 512Mi, but limit is 1Gi")),
		"a LimitRange does not allow its resources", toRights},
	"ratio": {apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New("memory max limit to request ratio per Container is 2, but provided ratio is 32.000000")),
		"a LimitRange does not allow its resources", toRights},
	"policy": {apierrors.NewForbidden(corev1.Resource("pods"), "a", errors.New(`violates PodSecurity "baseline:latest": host namespaces`)), toKept, toRights},
	"webhook": {&apierrors.StatusError{ErrStatus: metav1.Status{Code: 400, Message: `admission webhook "v.kyverno.svc" denied the request: names`}},
		toKept, toRights},
	"admission policy": {&apierrors.StatusError{ErrStatus: metav1.Status{Code: 422, Reason: metav1.StatusReasonInvalid,
		Message: "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no privileged pods"}}, toKept, toRights},
}

var batchJobs = batchv1.SchemeGroupVersion.WithResource("jobs").GroupResource()

// TestExplain checks that each refusal comes with its own remedy.
func TestExplain(t *testing.T) {
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			got := explain(c.err).Error()
			if !strings.HasPrefix(got, c.err.Error()) || !strings.Contains(got, c.want) || strings.Contains(got, c.not) {
				t.Errorf("%s", got)
			}
		})
	}
}

// TestRefusedPod checks the remedy where the Job's controller could not create the pod.
func TestRefusedPod(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &corev1.EventList{Items: []corev1.Event{{Message: "Error creating: " + refusals["quota of limits"].err.Error()}}}, nil
	})
	for namespace, want := range map[string]string{"packetwalk-a": "use --kept-namespace", Namespace: "change it in namespace packetwalk"} {
		c := &Cluster{client: client, namespace: namespace}
		err := c.refused(t.Context(), "job")
		if err == nil || !strings.Contains(err.Error(), "ResourceQuota cpu leaves no room for it: "+want) || strings.Contains(err.Error(), "policy") {
			t.Errorf("in %s: error %v", namespace, err)
		}
	}
}

// TestRefusedNamespace checks that an error about the run's namespace names the flag that does without one.
func TestRefusedNamespace(t *testing.T) {
	for name, refusal := range map[string]error{
		"no right": apierrors.NewForbidden(corev1.Resource("namespaces"), "", errors.New(`User "jane" cannot create resource "namespaces"`)),
		"webhook":  refusals["webhook"].err,
		"quota":    refusals["quota"].err,
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("create", "namespaces", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refusal })
			c := &Cluster{client: client, run: "a", nodes: map[string]*node{}}
			err := c.prepare(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), refusal.Error()) || !strings.Contains(err.Error(), "packetwalk rbac | kubectl apply") ||
				!strings.Contains(err.Error(), toKept) {
				t.Errorf("error %v", err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// TestSilentServer checks how long an API server is waited for that takes connections and says nothing.
func TestSilentServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	const patience = 100 * time.Millisecond
	for scheme, act := range map[string]func(*Cluster) error{
		"http":  func(c *Cluster) error { _, err := c.Look(t.Context()); return err },
		"https": func(c *Cluster) error { _, err := c.Look(t.Context()); return err },
		"http:": func(c *Cluster) error { _, err := c.Cleanup(t.Context(), CleanupOptions{}); return err },
	} {
		t.Run(scheme, func(t *testing.T) {
			host := strings.TrimSuffix(scheme, ":") + "://" + listener.Addr().String()
			c, err := openPatiently(&rest.Config{Host: host}, Options{}, patience)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			err = act(c)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			if err == nil || !strings.Contains(err.Error(), "the API server does not answer: no answer within 100ms; --context") {
				t.Errorf("error %v", err)
			}
		})
	}
}
