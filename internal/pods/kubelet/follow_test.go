package kubelet

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// TestTroublesThatLast: a watch that fails is a fault when that lasts, and no longer when it succeeds.
func TestTroublesThatLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ts troubles
		for range 3 {
			ts.note("Pods", errors.New("no route"))
			if err := ts.lasting(); err != nil {
				t.Errorf("at once: %v", err)
			}
			time.Sleep(troubleLasts / 3)
		}
		time.Sleep(troubleLasts / 3)
		if err := ts.lasting(); err == nil || err.Error() != "watch Pods: no route" {
			t.Errorf("after a while: %v", err)
		}
		ts.note("Pods", nil)
		if err := ts.lasting(); err != nil {
			t.Errorf("after it succeeded: %v", err)
		}
	})
}

// TestFollowTells: what is asked in vain is told, and that it is not any more.
func TestFollowTells(t *testing.T) {
	client := fake.NewClientset()
	var down atomic.Bool
	down.Store(true)
	fail := func(k8stesting.Action) (bool, runtime.Object, error) {
		if down.Load() {
			return true, nil, errors.New("no route")
		}
		return false, nil, nil
	}
	client.PrependReactor("list", "configmaps", fail)
	told := make(chan string, 100)
	f := informers.NewSharedInformerFactory(client, 0)
	core := client.CoreV1().ConfigMaps("")
	informer := follow(f, &corev1.ConfigMap{}, func(what string, err error) {
		said := what + " well"
		if err != nil {
			said = what + ": " + err.Error()
		}
		told <- said
	}, core.List, core.Watch)
	f.Start(t.Context().Done())
	await := func(want string) {
		t.Helper()
		for limit := time.After(time.Minute); ; {
			select {
			case said := <-told:
				if strings.Contains(said, want) {
					return
				}
			case <-limit:
				t.Fatalf("never told %q", want)
			}
		}
	}
	await("ConfigMaps: no route")
	down.Store(false)
	await("ConfigMaps well")
	for !informer.HasSynced() {
		time.Sleep(time.Millisecond)
	}
}
