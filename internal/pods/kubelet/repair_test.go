package kubelet

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// overwrite changes a pod's status as somebody else than its kubelet does.
func (b *bench) overwrite(name string, edit func(*corev1.PodStatus)) {
	b.t.Helper()
	api := b.client.CoreV1().Pods("default")
	p, err := api.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	edit(&p.Status)
	if _, err := api.UpdateStatus(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) statusUpdates() (n int) {
	for _, a := range b.client.Actions() {
		if a.GetVerb() == "update" && a.GetResource().Resource == "pods" && a.GetSubresource() == "status" {
			n++
		}
	}
	return n
}

func condition(s *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	if i := conditionIndex(s.Conditions, t); i >= 0 {
		return &s.Conditions[i]
	}
	return nil
}

// The node lifecycle controller marks the pods of a node that was not heard of as not ready; it is the kubelet that takes that back.
func TestStatusOverwrittenByOthersIsPutBack(t *testing.T) {
	const foreign = "example.com/foreign"
	for name, edit := range map[string]func(*corev1.PodStatus){
		"Ready": func(s *corev1.PodStatus) {
			c := condition(s, corev1.PodReady)
			c.Status, c.Reason, c.LastTransitionTime = corev1.ConditionFalse, "NodeNotReady", metav1.Now()
		},
		"no conditions":    func(s *corev1.PodStatus) { s.Conditions = nil },
		"phase":            func(s *corev1.PodStatus) { s.Phase = corev1.PodUnknown },
		"podIP":            func(s *corev1.PodStatus) { s.PodIP, s.PodIPs = "", nil },
		"container status": func(s *corev1.PodStatus) { s.ContainerStatuses[0].Ready = false },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.create(testPod("web"))
			was := b.await("web", "ready", ready)
			before := b.statusUpdates()
			b.overwrite("web", func(s *corev1.PodStatus) {
				edit(s)
				s.Conditions = append(s.Conditions, corev1.PodCondition{Type: foreign, Status: corev1.ConditionTrue, Reason: "Kept"})
			})
			p := b.await("web", "as the kubelet has it", func(p *corev1.Pod) bool {
				return ready(p) && p.Status.Phase == was.Status.Phase && p.Status.PodIP == was.Status.PodIP && len(p.Status.PodIPs) == 1 &&
					p.Status.ContainerStatuses[0].Ready && condition(&p.Status, corev1.ContainersReady) != nil
			})
			if c := condition(&p.Status, foreign); c == nil || c.Reason != "Kept" {
				t.Errorf("another's condition is lost: %+v", p.Status.Conditions)
			}
			if n := b.statusUpdates() - before; n != 2 { // the test's own, and the answer to it
				t.Errorf("%d updates", n)
			}
		})
	}
}

// TestStatusOnItsWay: what the API server tells of a pod before it has what was published last is no fault to be put right; what it tells
// afterwards is, and what it has not taken in good time.
func TestStatusOnItsWay(t *testing.T) {
	b := newBench(t)
	pod := b.create(testPod("web"))
	now := b.await("web", "ready", ready)
	w := b.k.byUID(pod.UID)
	before := now.DeepCopy()
	before.Status.PodIP = ""
	for _, tt := range []struct {
		name   string
		shown  bool
		told   time.Duration // ago
		least  time.Duration
		within time.Duration
	}{
		{"before it is shown", false, 0, writeTime / 2, writeTime},
		{"when it was shown", true, 0, 0, 0},
		{"after the time for it", false, writeTime, -time.Hour, 0},
	} {
		w.mu.Lock()
		w.shown, w.told = tt.shown, time.Now().Add(-tt.told)
		w.mu.Unlock()
		if got := w.underway(); got < tt.least || got > tt.within {
			t.Errorf("%s: put right in %v", tt.name, got)
		}
		if w.correction(before) == nil {
			t.Errorf("%s: nothing to put right", tt.name)
		}
	}
	w.mu.Lock()
	w.shown = false
	w.mu.Unlock()
	if w.correction(now) != nil || w.underway() != 0 {
		t.Errorf("what is as published is put right, or not noted: %v", w.underway())
	}
}

// What is not the kubelet's to set is not fought over, nor is an end that somebody else declared.
func TestForeignStatusIsLeftAlone(t *testing.T) {
	b := newBench(t)
	for _, name := range []string{"web", "gone"} {
		b.create(testPod(name))
		b.await(name, "ready", ready)
	}
	before := b.statusUpdates()
	b.overwrite("gone", func(s *corev1.PodStatus) { s.Phase, s.Reason = corev1.PodFailed, "Evicted" })
	b.overwrite("web", func(s *corev1.PodStatus) {
		s.NominatedNodeName = "elsewhere"
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue})
	})
	// Updates of one pod are heard in order: when this one is answered, the ones before it were looked at.
	b.overwrite("web", func(s *corev1.PodStatus) { condition(s, corev1.PodReady).Status = corev1.ConditionFalse })
	p := b.await("web", "ready again", ready)
	if p.Status.NominatedNodeName != "elsewhere" || condition(&p.Status, corev1.DisruptionTarget) == nil {
		t.Errorf("status %+v", p.Status)
	}
	if p := b.await("gone", "there", func(*corev1.Pod) bool { return true }); p.Status.Reason != "Evicted" {
		t.Errorf("status %+v", p.Status)
	}
	if n := b.statusUpdates() - before; n != 4 {
		t.Errorf("%d updates, want the test's three and one answer", n)
	}
}

// A readiness gate is somebody else's condition; the pod is ready when it is true, and no longer when it is not.
func TestReadinessGate(t *testing.T) {
	const gate = "example.com/gate"
	b := newBench(t)
	b.create(testPod("web", func(p *corev1.Pod) { p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}} }))
	b.await("web", "running but not ready", func(p *corev1.Pod) bool {
		c := condition(&p.Status, corev1.PodReady)
		return c != nil && c.Reason == "ReadinessGatesNotReady"
	})
	set := func(v corev1.ConditionStatus) {
		b.overwrite("web", func(s *corev1.PodStatus) {
			setCondition(s, corev1.PodCondition{Type: gate, Status: v, LastTransitionTime: metav1.NewTime(time.Unix(1700000000, 0))})
		})
	}
	set(corev1.ConditionTrue)
	b.await("web", "ready", ready)
	set(corev1.ConditionFalse)
	p := b.await("web", "not ready", func(p *corev1.Pod) bool { return !ready(p) })
	if c := condition(&p.Status, gate); c == nil || c.Status != corev1.ConditionFalse {
		t.Errorf("the gate: %+v", c)
	}
}
