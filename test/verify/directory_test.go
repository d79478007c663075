package verify

import (
	"sync"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestOpenDirectory: runs that begin at once do not take one another's directories away.
func TestOpenDirectory(t *testing.T) {
	kerneltest.NeedRoot(t)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			d, err := OpenDirectory()
			if err != nil {
				t.Error(err)
				return
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}
