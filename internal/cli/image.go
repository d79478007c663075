//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/pull"
)

// imageCommand makes the command of the machine's images.
func imageCommand(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "image load|list|rm|build|save ...",
		Short: "the container images that pods can run, in all labs",
		Args:  noArguments("its commands are load, list, rm, build and save"),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	add(root, "", imageLoadCommand(s), imageListCommand(s), imageRemoveCommand(s), imageBuildCommand(s), imageSaveCommand(s))
	return root
}

func imageLoadCommand(s Streams) *cobra.Command {
	var private []string
	c := &cobra.Command{
		Use:   "load FILE|DIR|REF...",
		Short: "load images from archives, as docker save makes them, or from registries",
		Long: `Loads images from archives that docker save, podman save, buildx or skopeo made, compressed or not, or from the directory of an OCI image
layout; - is standard input. An image whose archive gives it no name is named after the file. What is no file is pulled by its name, with the
logins (docker login) of the user who called sudo. Of an archive or a name for several platforms the image for this machine is taken.
Nodes that have another image of that name get the new one: "kubectl rollout restart" runs it.`,
		Example: `  packetwalk image load nginx:1.27
  packetwalk image load --private-registry registry.example:5000 registry.example:5000/shop:v1
  docker save nginx:1.27 | packetwalk image load -
  skopeo copy docker://nginx:1.27 docker-archive:nginx.tar:nginx:1.27
  packetwalk image load nginx.tar`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("image load needs an archive that docker save or skopeo made, - for standard input, or an image's name")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			client, err := pullClient(private)
			if err != nil {
				return badInput{err}
			}
			store, err := imageStore()
			if err != nil {
				return err
			}
			return loadImages(c.Context(), termsafe.Writer(s.Out), imageLoader{store, client, termsafe.Writer(s.Err), time.Second}, args)
		},
	}
	c.Flags().StringArrayVar(&private, "private-registry", nil,
		"a registry that may be at a private or loopback address, HOST[:PORT], http://HOST[:PORT] without TLS; may be repeated")
	return c
}

func pullClient(private []string) (*pull.Client, error) {
	var allowed []pull.Registry
	for _, p := range private {
		r, err := pull.ParseRegistry(p)
		if err != nil {
			return nil, fmt.Errorf("--private-registry: %w", err)
		}
		allowed = append(allowed, r)
	}
	return pull.NewClient(allowed), nil
}

type imageLoader struct {
	store  *images.Store
	client *pull.Client
	tell   io.Writer     // how far it is
	every  time.Duration // when that is told
}

// progress tells how much has come of an image, until stop is called; nothing of one that has come before.
func (l imageLoader) progress(what string) (stop func()) {
	begin := l.store.Came()
	return repeat(l.every, func() { fmt.Fprintf(l.tell, "%s: %s so far\n", what, megabytes(l.store.Came()-begin)) })
}

// elapsedPause is the time between two lines of sayElapsed: what is quicker says nothing.
const elapsedPause = 3 * time.Second

// sayElapsed says again and again for how long something has run, until stop is called.
func sayElapsed(out io.Writer, what string, every time.Duration) (stop func()) {
	begin := time.Now()
	return repeat(every, func() { fmt.Fprintf(out, "%s: %.0f s so far\n", what, time.Since(begin).Seconds()) })
}

// repeat calls a function again and again, until stop is called.
func repeat(every time.Duration, do func()) (stop func()) {
	tick, done := time.NewTicker(every), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-tick.C:
				do()
			case <-done:
				return
			}
		}
	})
	return func() { tick.Stop(); close(done); running.Wait() }
}

// load loads one archive, or pulls what is no file.
func (l imageLoader) load(ctx context.Context, what string) ([]images.Image, error) {
	if what == "-" {
		what = "/dev/stdin"
	}
	_, err := os.Stat(what)
	if !errors.Is(err, fs.ErrNotExist) {
		list, err := l.store.Load(ctx, what)
		return list, inputOrFailure(err)
	}
	if pull.IsPath(what) {
		return nil, badInput{fmt.Errorf("%s: no such file; give an archive that docker save or skopeo made, or an image's name", what)}
	}
	image, err := l.client.Load(ctx, l.store, what)
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", what, err)
	}
	return []images.Image{image}, nil
}

// loadImages loads what it can, and gives the errors of the rest.
func loadImages(ctx context.Context, out io.Writer, from imageLoader, all []string) error {
	var errs error
	for _, what := range all {
		stop := from.progress(what)
		list, err := from.load(ctx, what)
		stop()
		for _, i := range list {
			printImage(out, i)
		}
		errs = errors.Join(errs, err, moveTags(ctx, out, from.tell, list...))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return errs
}

// printImage says in one line what has come.
func printImage(out io.Writer, i images.Image) {
	fmt.Fprintf(out, "%s  %s  %s\n", dash(i.Name), shortDigest(i.Digest), megabytes(i.Size))
}

// inputOrFailure tells archives that are not right, the user's to mend, from what this machine did not do.
func inputOrFailure(err error) error {
	var machine unix.Errno
	if err == nil || errors.As(err, &machine) && !errors.Is(err, fs.ErrNotExist) {
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
			w := tabwriter.NewWriter(termsafe.Writer(s.Out), 0, 8, 3, ' ', 0)
			fmt.Fprintln(w, "NAME\tDIGEST\tSIZE\tLAYERS")
			for _, i := range list {
				if i.Damage != "" {
					fmt.Fprintf(w, "%s\t%s\tdamaged: %s\n", dash(i.Name), shortDigest(i.Digest), i.Damage)
					continue
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\n", dash(i.Name), shortDigest(i.Digest), megabytes(i.Size), i.Layers)
			}
			return w.Flush()
		},
	}
}

func imageRemoveCommand(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "rm REF...",
		Short: "remove images by name, or by a digest as list shows it",
		Long:  `Removes images by name, or by a digest as list shows it. Nodes that have pulled an image keep it: containers run on.`,
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
				fmt.Fprintln(termsafe.Writer(s.Out), "removed", ref)
			}
			return errs
		},
	}
}

func imageBuildCommand(s Streams) *cobra.Command {
	var r images.Recipe
	var entrypoint string
	var add []string
	c := &cobra.Command{
		Use:   "build DIR|BINARY -t NAME",
		Short: "make an image of a static program, or of a Go main package",
		Long: `Makes an image of a static program, with users, /tmp and the certificate authorities that this machine trusts. A folder with a Go main package
is built first, by the go command, as the user who called sudo. The same files make the same image. Nodes that have another image of that
name get the new one: "kubectl rollout restart" runs it.`,
		Example: `  packetwalk image build ./cmd/shop -t shop:v1
  packetwalk image build ./shop -t shop:v1 --env PORT=8080 --add ./static:/srv/static`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("image build needs one static program, or one folder with a Go main package")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			r.Source, r.Entrypoint = args[0], strings.Fields(entrypoint)
			if err := completeRecipe(&r, add); err != nil {
				return badInput{err}
			}
			store, err := imageStore()
			if err != nil {
				return err
			}
			stop := sayElapsed(termsafe.Writer(s.Err), "building "+r.Name+" of "+r.Source, elapsedPause)
			img, err := store.Build(c.Context(), r)
			stop()
			if err != nil {
				return inputOrFailure(err)
			}
			printImage(termsafe.Writer(s.Out), img)
			return moveTags(c.Context(), termsafe.Writer(s.Out), termsafe.Writer(s.Err), img)
		},
	}
	c.Flags().StringVarP(&r.Name, "tag", "t", "", "the image's name, such as shop:v1")
	c.Flags().StringVar(&entrypoint, "entrypoint", "", "what containers run, and its arguments (default the program)")
	c.Flags().StringArrayVar(&r.Env, "env", nil, "a variable that containers have, NAME=VALUE; may be repeated")
	c.Flags().StringVar(&r.User, "user", "", "who containers run as, USER[:GROUP] by name or number (default root)")
	c.Flags().StringVar(&r.WorkingDir, "workdir", "", "the folder that containers begin in (default /)")
	c.Flags().StringArrayVar(&add, "add", nil, "a folder whose files are added, DIR:PATH; may be repeated")
	return c
}

// completeRecipe checks what was written, and parts what is added.
func completeRecipe(r *images.Recipe, add []string) error {
	if r.Name == "" {
		return errors.New("the image needs a name: -t NAME, such as -t shop:v1")
	}
	for _, v := range r.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return fmt.Errorf("--env %q: write NAME=VALUE", v)
		}
	}
	if r.WorkingDir != "" && !path.IsAbs(r.WorkingDir) {
		return fmt.Errorf("--workdir %q: write a path from the root on, such as /srv", r.WorkingDir)
	}
	for _, a := range add {
		i := strings.LastIndexByte(a, ':')
		if i < 1 || !path.IsAbs(a[i+1:]) {
			return fmt.Errorf("--add %q: write DIR:PATH, with a path from the image's root on, such as ./static:/srv/static", a)
		}
		info, err := os.Stat(a[:i])
		if err != nil {
			return fmt.Errorf("--add %q: %w", a, err)
		}
		if !info.IsDir() {
			return fmt.Errorf("--add %q: %s is no folder; put what is to be added into one", a, a[:i])
		}
		r.Add = append(r.Add, images.Addition{Dir: a[:i], Path: a[i+1:]})
	}
	return nil
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

// shortDigest returns as much of a digest as image rm takes for one.
func shortDigest(d string) string { return d[:min(len(d), len("sha256:")+12)] }

func megabytes(octets int64) string { return fmt.Sprintf("%.1f MB", float64(octets)/1e6) }
