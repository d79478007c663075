package cli

import (
	"strings"
	"testing"

	"packetwalk.dev/internal/session"
)

// TestAzureOfLab: no login is used for a lab, whose nodes Azure does not have.
func TestAzureOfLab(t *testing.T) {
	lab := &session.Session{Lab: struct{ session.Lab }{}}
	for _, value := range []string{byLogin, "/subscriptions/1/resourceGroups/x"} {
		err := azureOptions{value}.extend(t.Context(), Streams{}, lab)
		if err == nil || !strings.Contains(err.Error(), "leave --azure out") {
			t.Errorf("%s: %v", value, err)
		}
	}
}
