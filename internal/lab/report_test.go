package lab

import (
	"errors"
	"slices"
	"testing"
)

// TestTried: what did not succeed is a problem until it does; a change under way is a warning.
func TestTried(t *testing.T) {
	l := &lab{}
	state := func() (problems, warnings []string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.work()
	}
	err := errors.New("node n2: no address is free")
	if got := l.tried(taskChange, err); !errors.Is(got, err) {
		t.Errorf("got %v", got)
	}
	l.busy.Store(true)
	problems, warnings := state()
	if want := []string{string(taskChange) + ": node n2: no address is free"}; !slices.Equal(problems, want) || len(warnings) != 1 {
		t.Errorf("problems %q, warnings %q", problems, warnings)
	}
	l.busy.Store(false)
	if err := l.tried(taskChange, nil); err != nil {
		t.Error(err)
	}
	if problems, warnings := state(); len(problems)+len(warnings) != 0 {
		t.Errorf("problems %q, warnings %q", problems, warnings)
	}
}
