package cli

import "testing"

// TestCaptureOfMany: how many nodes a walk reads at most is no bound of captures.
func TestCaptureOfMany(t *testing.T) {
	var o pluginOptions
	pluginWalkCommand(Streams{}, &o)
	pluginCaptureCommand(Streams{}, &o)
	if o.pods.Most != 0 {
		t.Errorf("captures are of %d nodes at most", o.pods.Most)
	}
}
