package lab

import (
	"strings"
	"testing"
)

// TestNoSuchPod: who names a pod that is not there is told how to list those that are.
func TestNoSuchPod(t *testing.T) {
	if _, err := Dir(t.TempDir()).FindHost("pod/nobody"); err == nil || !strings.Contains(err.Error(), "packetwalk kubectl get pods") {
		t.Error(err)
	}
}
