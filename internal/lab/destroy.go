package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/mounts"
	"packetwalk.dev/internal/base/removetree"
	"packetwalk.dev/internal/kernel/netns"
)

// Destroy ends every process of the lab and takes away its namespaces, mounts and files. It asks nothing of the lab process, so
// that it works the same on a lab that is well, half made, or left behind by kill -9. Destroying what is gone is no error.
func Destroy(ctx context.Context, d Dir) error {
	var err error
	// A lab process that was being started at this moment is found at the second look.
	for range 3 {
		if !d.Exists() {
			_ = os.Remove(Root)    // only when this was the last lab
			return d.removeState() // which a restart of the machine leaves
		}
		err = destroy(ctx, d)
	}
	return err
}

func destroy(ctx context.Context, d Dir) error {
	// The lab process first: it would start again what dies.
	if err := netns.Kill(ctx, func() ([]int, error) { return one(d.Process()), nil }); err != nil {
		return fmt.Errorf("end the lab process: %w", err)
	}
	spaces, err := netns.OpenMounted(d.path("netns"))
	if err != nil {
		return err
	}
	defer netns.CloseAll(spaces)
	unmounted, err := netns.OpenOf(slices.Concat(slices.Collect(maps.Values(d.processes()))...)...) // a mount may have been lost
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
	if err := unmountBelow(string(d)); err != nil {
		return err
	}
	if err := d.removeState(); err != nil {
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

// unmountBelow detaches what is still mounted below dir, the deepest first.
func unmountBelow(dir string) error {
	all, err := mounts.Own()
	if err != nil {
		return err
	}
	var points []string
	for _, m := range all {
		if strings.HasPrefix(m.Point, dir+"/") {
			points = append(points, m.Point)
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(points)))
	for _, p := range points {
		if err := unix.Unmount(p, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	return nil
}
