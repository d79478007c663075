package lab

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
)

// TestUnboundedIsTold: what nodes' control groups do not bound is in every status.
func TestUnboundedIsTold(t *testing.T) {
	s := status.New("x", 1)
	(&bounds{Env: &lifecycle.Env{Unbounded: []string{"memory is not limited: no group"}}}).Report(&s)
	want := []string{"nodes are not kept from using up the machine: memory is not limited: no group"}
	if diff := cmp.Diff(want, s.Warnings); diff != "" {
		t.Error(diff)
	}
}
