package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/visible"
	"packetwalk.dev/internal/pods/images"
)

// imageCommand is of the machine's images. It is hidden as long as no container runs them.
func imageCommand(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:    "image load|list|rm ...",
		Short:  "the container images that pods of all labs can run",
		Hidden: true,
		Args:   noArguments("its commands are load, list and rm"),
		RunE:   func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	add(root, "", imageLoadCommand(s), imageListCommand(s), imageRemoveCommand(s))
	return root
}

func imageLoadCommand(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "load FILE...|DIR...",
		Short: "load images from archives that docker save, podman save, buildx or skopeo made",
		Long: `Loads images from archives that docker save, podman save, buildx or skopeo made, compressed or not, or from the directory of an OCI image
layout; - is standard input. An image whose archive gives it no name is named after the file. Of an archive for several platforms the image
for this machine is taken.`,
		Example: `  docker save nginx:1.27 | packetwalk image load -
  skopeo copy docker://registry.k8s.io/pause:3.10 docker-archive:pause.tar:registry.k8s.io/pause:3.10 && packetwalk image load pause.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("image load needs an archive that docker save or skopeo made, or - for standard input")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			store, err := imageStore()
			if err != nil {
				return err
			}
			return loadImages(c.Context(), visible.Writer(s.Out), store, args)
		},
	}
}

// loadImages loads what it can, and gives the errors of the rest.
func loadImages(ctx context.Context, out io.Writer, store *images.Store, paths []string) error {
	var errs error
	for _, path := range paths {
		if path == "-" {
			path = "/dev/stdin"
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			errs = errors.Join(errs, badInput{fmt.Errorf("%s: no such file; give an archive that docker save or skopeo made", path)})
			continue
		}
		list, err := store.Load(ctx, path)
		for _, i := range list {
			fmt.Fprintf(out, "%s  %s  %s\n", dash(i.Name), shortDigest(i.Digest), megabytes(i.Size))
		}
		if err != nil {
			errs = errors.Join(errs, inputOrFailure(err))
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errs
}

// inputOrFailure tells archives that are not right, the user's to mend, from what this machine did not do.
func inputOrFailure(err error) error {
	var machine unix.Errno
	if errors.As(err, &machine) && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return badInput{err}
}

func imageListCommand(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "list the images that are loaded",
		Args:  noArguments("it lists all"),
		RunE: func(c *cobra.Command, _ []string) error {
			store, err := imageStore()
			if err != nil {
				return err
			}
			list, err := store.List(c.Context())
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(visible.Writer(s.Out), 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tDIGEST\tSIZE\tLAYERS")
			for _, i := range list {
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", dash(i.Name), shortDigest(i.Digest), megabytes(i.Size), len(i.Layers))
			}
			return w.Flush()
		},
	}
}

func imageRemoveCommand(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "rm REF...",
		Short: "remove images by name, or by a digest as list shows it",
		Long:  `Removes images by name, or by a digest as list shows it. Layers that containers use stay until they no longer do; the containers run on.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("image rm needs an image; 'packetwalk image list' shows them")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			store, err := imageStore()
			if err != nil {
				return err
			}
			var errs error
			for _, ref := range args {
				if err := store.Remove(c.Context(), ref); err != nil {
					errs = errors.Join(errs, inputOrFailure(err))
					continue
				}
				fmt.Fprintln(visible.Writer(s.Out), "removed", ref)
			}
			return errs
		},
	}
}

func imageStore() (*images.Store, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("images have files of many owners, which needs root; run it with sudo")
	}
	dir, err := images.Dir()
	if err != nil {
		return nil, err
	}
	return images.Open(dir)
}

// shortDigest is as much of a digest as image rm takes for one.
func shortDigest(d string) string { return d[:min(len(d), len("sha256:")+12)] }

func megabytes(octets int64) string { return fmt.Sprintf("%.1f MB", float64(octets)/1e6) }
