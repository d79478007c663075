//go:build linux

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"packetwalk.dev/internal/base/imageref"
	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/pods/images"
)

func imageSaveCommand(s Streams) *cobra.Command {
	var file string
	var private []string
	c := &cobra.Command{
		Use:   "save [REF...] -o FILE",
		Short: "write images to an archive, for clusters without a network",
		Long: `Writes images to an archive that docker load, podman load, ctr images import and packetwalk image load take; without REF packetwalk's own,
which kubectl packetwalk runs on nodes. What is not loaded is pulled first, with the logins (docker login) of the user who called sudo. -o - is
standard output.

The archive has the images for this machine's platform, as the store has. An archive of packetwalk's own image for amd64 and arm64 is what
make image writes.`,
		Example: `  packetwalk image save -o packetwalk.tar
  packetwalk image save registry.k8s.io/pause:3.10 nginx:1.27 -o images.tar
  packetwalk image save -o - | ssh node-1 sudo ctr -n k8s.io images import -`,
		RunE: func(c *cobra.Command, refs []string) error {
			if file == "" {
				return badInput{errors.New("image save needs a file to write: -o FILE, or -o - for standard output")}
			}
			if len(refs) == 0 {
				refs = []string{imageref.Image(Version)}
			}
			client, err := pullClient(private)
			if err != nil {
				return badInput{err}
			}
			store, err := imageStore()
			if err != nil {
				return err
			}
			if err := (imageLoader{store, client, termsafe.Writer(s.Err), time.Second}).have(c.Context(), refs); err != nil {
				return err
			}
			if file == "-" {
				return saveImages(c.Context(), store, s.Out, refs)
			}
			return saveToFile(c.Context(), store, file, refs)
		},
	}
	c.Flags().StringVarP(&file, "output", "o", "", "the file to write; - is standard output")
	c.Flags().StringArrayVar(&private, "private-registry", nil,
		"a registry that may be at a private or loopback address, HOST[:PORT], http://HOST[:PORT] without TLS; may be repeated")
	return c
}

// have pulls the images that are not in the store.
func (l imageLoader) have(ctx context.Context, refs []string) error {
	for _, ref := range refs {
		_, err := l.store.Manifest(ref)
		if err == nil {
			continue
		}
		if !errors.Is(err, images.ErrNotFound) {
			return inputOrFailure(err)
		}
		stop := l.progress(ref)
		_, err = l.client.Load(ctx, l.store, ref)
		stop()
		if err != nil {
			return fmt.Errorf("image %s is not loaded; pull it: %w", ref, err)
		}
	}
	return nil
}

// saveToFile writes beside the file, and replaces that when the archive is whole.
func saveToFile(ctx context.Context, store *images.Store, file string, refs []string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err := errors.Join(saveImages(ctx, store, f, refs), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

func saveImages(ctx context.Context, store *images.Store, to io.Writer, refs []string) error {
	w := bufio.NewWriterSize(to, 1<<20)
	if err := store.Save(ctx, w, refs...); err != nil {
		return err
	}
	return w.Flush()
}
