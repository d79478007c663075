package usercluster

import (
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"

	"packetwalk.dev/internal/base/imageref"

	corev1 "k8s.io/api/core/v1"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"packetwalk.dev/internal/testing/goldentest"
)

// TestPlan: what a run makes, object by object.
func TestPlan(t *testing.T) {
	goldentest.Run(t, "testdata/plan*.txtar", 1, func(t *testing.T, in []txtar.File) []txtar.File {
		var o struct {
			Version, Image, PullSecret, Node string
			Life                             metav1.Duration
		}
		if err := yaml.UnmarshalStrict(in[0].Data, &o); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, object := range Plan(Options{Version: o.Version, Image: o.Image, PullSecret: o.PullSecret, Life: o.Life.Duration}, o.Node) {
			text, err := yaml.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			texts = append(texts, string(text))
		}
		return []txtar.File{{Name: "plan.yaml", Data: []byte(strings.Join(texts, "---\n"))}}
	})
}

// waiting returns the status of a pod whose container waits for a reason.
func waiting(reason, message string) corev1.PodStatus {
	state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{State: state}}}
}

// TestHindered: what a pod that will never run is told of, with the remedy; and what is only slow is waited for.
func TestHindered(t *testing.T) {
	running := waiting("", "")
	running.Phase = corev1.PodRunning
	running.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	for name, test := range map[string]struct {
		status corev1.PodStatus
		runs   bool
		says   []string
	}{
		"no kubelet yet": {},
		"pending":        {status: corev1.PodStatus{Phase: corev1.PodPending}},
		"made":           {status: waiting("ContainerCreating", "")},
		"running":        {status: running, runs: true},
		"pull":           {status: waiting("ErrImagePull", "401\n Unauthorized\x1b[31m"), says: []string{"corp/pw:1", "401", "--image-pull-secret"}},
		"pull again":     {status: waiting("ImagePullBackOff", "later"), says: []string{"corp/pw:1", "later", "--image"}},
		"never pulled":   {status: waiting("ErrImageNeverPull", "not present"), says: []string{"not present", "--image"}},
		"no image name":  {status: waiting("InvalidImageName", "bad"), says: []string{"corp/pw:1", "bad"}},
		"no container":   {status: waiting("CreateContainerError", "no space"), says: []string{"container cannot be made", "no space"}},
		"not run":        {status: waiting("RunContainerError", "no runc"), says: []string{"container cannot be made", "no runc"}},
		"ended":          {status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "disk"}, says: []string{"ended", "Evicted", "disk"}},
		"full": {status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "capacity: 30"},
			says: []string{"no room", "capacity: 30"}},
		"over": {status: corev1.PodStatus{Phase: corev1.PodSucceeded}, says: []string{"ended"}},
	} {
		runs, err := podRuns(&corev1.Pod{Status: test.status}, Options{Image: "corp/pw:1"})
		if runs != test.runs || (err != nil) != (test.says != nil) {
			t.Errorf("%s: %t, %v", name, runs, err)
		}
		for _, say := range test.says {
			if err == nil || !strings.Contains(err.Error(), say) || strings.ContainsAny(err.Error(), "\x1b\n") || strings.Contains(err.Error(), "u000a") {
				t.Errorf("%s: %q does not say %q, or has control characters", name, err, say)
			}
		}
	}
}

// TestUnreadableNode: nodes that are not read, and why.
func TestUnreadableNode(t *testing.T) {
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelOSStable: "linux"}}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse},
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		change(n)
		return n
	}
	for want, n := range map[string]*corev1.Node{
		"":        node(func(*corev1.Node) {}),
		"Windows": node(func(n *corev1.Node) { n.Labels[corev1.LabelOSStable] = "windows" }),
		"runs Windows": node(func(n *corev1.Node) {
			n.Labels, n.Status.NodeInfo.OperatingSystem = nil, "windows"
		}),
		"virtual node": node(func(n *corev1.Node) { n.Labels["type"] = "virtual-kubelet" }),
		"not ready: kubelet stopped": node(func(n *corev1.Node) {
			n.Status.Conditions[1] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "kubelet stopped"}
		}),
		"name": node(func(n *corev1.Node) { n.Name = "../n" }),
	} {
		if got := unreadableNode(n); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLifeAndStart: what is not said has a bound.
func TestLifeAndStart(t *testing.T) {
	if o := (Options{}); o.life() != 10*time.Minute || o.start() != time.Minute {
		t.Errorf("life %s, start %s", o.life(), o.start())
	}
}

// TestImage: a release's plugin names its image by the digest, and a user's image is taken as it is.
func TestImage(t *testing.T) {
	imageref.Digest = "sha256:" + strings.Repeat("a", 64)
	defer func() { imageref.Digest = "" }()
	for _, tt := range []struct {
		o    Options
		want string
	}{
		{Options{Version: "v1.2.0"}, "packetwalk.dev/packetwalk:v1.2.0@" + imageref.Digest},
		{Options{Version: "v1.2.0", Image: "corp/pw:1"}, "corp/pw:1"},
	} {
		if got := tt.o.image(); got != tt.want {
			t.Errorf("%+v: %s, want %s", tt.o, got, tt.want)
		}
	}
}
