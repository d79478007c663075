package usercluster

import (
	"crypto/rand"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/imageref"
)

// Namespace is the one that an administrator keeps (see [Rights]) for those who may make none: others have rights there. A run that may
// makes one of its own, whose name begins so. What is made bears the labels.
const (
	Namespace    = "packetwalk"
	managedBy    = "app.kubernetes.io/managed-by"
	manager      = "packetwalk"
	runLabel     = "packetwalk.dev/run"
	numberLabel  = "packetwalk.dev/number"
	containerOf  = "packetwalk"
	serviceUser  = "packetwalk"
	podSecurity  = "pod-security.kubernetes.io/enforce"
	virtualLabel = "type" // of virtual nodes: virtual-kubelet (Azure/virtual-kubelet, AKS's virtual node)
)

// Options are how pods are made.
type Options struct {
	Version    string
	Image      string // "" for that of the version
	PullSecret string // a Secret of type kubernetes.io/dockerconfigjson in Namespace; "" for none
	Kept       bool   // use Namespace, which must be there; with PullSecret so, too
	// Life is how long a node's pod lives at most; 0 for 10 minutes. Start is how long one is waited for; 0 for a minute.
	Life, Start time.Duration
	Most        int // nodes at most that [Source.Read] reads; 0 for all
}

// MostStart is the longest that it makes sense to wait for a pod, which lives no longer itself.
const MostStart = defaultLife

const (
	defaultLife  = 10 * time.Minute
	defaultStart = time.Minute
	timeToLive   = 60 // seconds that a Job is kept after its end
)

func (o Options) image() string {
	if o.Image != "" {
		return o.Image
	}
	return imageref.Pinned(o.Version)
}

func (o Options) kept() bool { return o.Kept || o.PullSecret != "" }

func (o Options) life() time.Duration {
	if o.Life > 0 {
		return o.Life
	}
	return defaultLife
}

func (o Options) start() time.Duration {
	if o.Start > 0 {
		return o.Start
	}
	return defaultStart
}

// perNode is how much longer pods live for each node of a capture: they are read one after the other.
const perNode = 5 * time.Second

// ForCapture returns the options for a capture of so many nodes, on which [View.Start] starts pods.
func (o Options) ForCapture(nodes int) Options {
	o.Life = o.life() + time.Duration(nodes)*perNode
	return o
}

func labels(run string) map[string]string {
	all := map[string]string{managedBy: manager}
	if run != "" {
		all[runLabel] = run
	}
	return all
}

// newRun returns the name of one run.
func newRun() string { return strings.ToLower(rand.Text()[:10]) }

// namespace returns the one that holds everything. Its pods are privileged, which Pod Security Admission has to be told
// (kubernetes.io/docs: pod-security-admission).
func namespace(name, run string) *corev1.Namespace {
	ns := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}}
	ns.Name, ns.Labels = name, labels(run)
	ns.Labels[podSecurity] = "privileged"
	ns.Labels["pod-security.kubernetes.io/warn"], ns.Labels["pod-security.kubernetes.io/audit"] = "privileged", "privileged"
	return ns
}

// serviceAccount has no rights, and its pods no token.
func serviceAccount(namespace string) *corev1.ServiceAccount {
	no := false
	a := &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, AutomountServiceAccountToken: &no}
	a.Name, a.Namespace, a.Labels = serviceUser, namespace, labels("")
	return a
}

// job returns the pod on one node: the number-th of a run. It shares the node's network and process ids, by which the pods' namespaces are
// found, and is privileged, because namespaces are entered and rules read by root alone. Its command waits; what reads is started by exec.
// It goes to its node past the scheduler, so that neither taints nor a cordon keep it away.
func (o Options) job(namespace, run string, number int, node string) *batchv1.Job {
	yes, no := true, false
	none, ttl, life, grace := int32(0), int32(timeToLive), int64(o.life().Seconds()), int64(0)
	j := &batchv1.Job{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}}
	j.Name, j.Namespace, j.Labels = "packetwalk-"+run+"-"+strconv.Itoa(number), namespace, labels(run)
	j.Annotations = map[string]string{"packetwalk.dev/node": node}
	j.Spec = batchv1.JobSpec{BackoffLimit: &none, TTLSecondsAfterFinished: &ttl, ActiveDeadlineSeconds: &life}
	pod := &j.Spec.Template
	pod.Labels = labels(run)
	pod.Labels[numberLabel] = strconv.Itoa(number)
	pod.Spec = corev1.PodSpec{
		NodeName: node, ServiceAccountName: serviceUser, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		HostNetwork: true, HostPID: true, DNSPolicy: corev1.DNSDefault, RestartPolicy: corev1.RestartPolicyNever,
		TerminationGracePeriodSeconds: &grace, ActiveDeadlineSeconds: &life,
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{
			Name: containerOf, Image: o.image(), ImagePullPolicy: corev1.PullIfNotPresent,
			Command: []string{"packetwalk", "on-node", "wait", "--for", o.life().String()},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
				Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
			},
			SecurityContext: &corev1.SecurityContext{Privileged: &yes, ReadOnlyRootFilesystem: &yes, RunAsUser: new(int64)},
		}},
	}
	if o.PullSecret != "" {
		pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: o.PullSecret}}
	}
	return j
}
