package lab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"

	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/layout"
)

// Destroy ends every process of the lab and takes away its namespaces, mounts and files. It asks nothing of the lab process, so
// that it works the same on a lab that is well, half made, or left behind by kill -9. Destroying what is gone is no error.
func Destroy(ctx context.Context, d layout.Dir) error {
	var err error
	// A lab process that was being started at this moment is found at the second look.
	for range 3 {
		if !d.Exists() {
			_ = os.Remove(Root)    // only when this was the last lab
			return d.RemoveState() // which a restart of the machine leaves
		}
		err = destroy(ctx, d)
	}
	return err
}

func destroy(ctx context.Context, d layout.Dir) error {
	// The lab process first: it would start again what dies.
	if err := netns.Kill(ctx, func() ([]int, error) { return one(d.Process()), nil }); err != nil {
		return fmt.Errorf("end the lab process: %w", err)
	}
	spaces, err := netns.OpenMounted(d.Path("netns"))
	if err != nil {
		return err
	}
	defer netns.CloseAll(spaces)
	unmounted, err := netns.OpenOf(slices.Concat(slices.Collect(maps.Values(d.HostProcesses()))...)...) // a mount may have been lost
	if err != nil {
		return err
	}
	defer netns.CloseAll(unmounted)
	if err := netns.KillIn(ctx, slices.Concat(spaces, unmounted)...); err != nil {
		return fmt.Errorf("end the lab's processes: %w", err)
	}
	for _, ns := range spaces {
		if err := ns.Remove(); err != nil {
			return err
		}
	}
	if err := layout.UnmountBelow(string(d)); err != nil {
		return err
	}
	if err := d.RemoveState(); err != nil {
		return fmt.Errorf("remove what the nodes had: %w", err)
	}
	if err := removetree.Remove(string(d)); err != nil {
		return fmt.Errorf("remove the lab's files: %w", err)
	}
	return nil
}

func one(pid int) []int {
	if pid == 0 {
		return nil
	}
	return []int{pid}
}
