package kernel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"packetwalk.dev/internal/model/snapshot"
)

// DumpParts is Dump for some parts of a host's state only: for who has dumped it before and knows what can have changed since. Without
// parts it dumps all.
func (d *Dumper) DumpParts(ctx context.Context, name string, ns *Namespace, parts ...snapshot.Part) (*snapshot.Raw, error) {
	d.init()
	raw := &snapshot.Raw{Name: name, Taken: time.Now(), Kernel: d.release, NetNS: ns.Inode(), Outputs: map[string]snapshot.Output{}}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, row := range snapshot.Dumps {
		if len(parts) > 0 && !slices.Contains(parts, row.Part) {
			continue
		}
		wg.Go(func() {
			out := d.run(ctx, ns, row)
			mu.Lock()
			defer mu.Unlock()
			raw.Outputs[row.File] = out
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("dump %s: %w", name, err)
	}
	return raw, nil
}
