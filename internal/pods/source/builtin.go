package source

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/images"
)

// BuiltIn makes images of the built-in applications, when they are asked for, in the machine's store, where all labs have them. They have
// three kinds of layers: Debian's files, the program, and the application's own files and links to the program. All share the
// first, and those whose program is packetwalk-app the second.
type BuiltIn struct {
	Program string            // packetwalk-app
	Brought map[string]string // the machine's files of programs that are not in it (app.App.Brought), by their base names
	Open    func() (*images.Store, error)
	Base    string                 // the directory that scripts/base made, or a link to it
	Roots   func() (string, error) // where what is in it is unpacked; RootsDir in a lab

	flights  singleflight.Group // by application
	building sync.Mutex         // one image after the other: most share their layers

	mu   sync.Mutex
	dirs map[part]string // of the parts' roots that are there
}

// programPath is where an image of a built-in application has its program.
const programPath = "/.packetwalk/program"

// longestBuild bounds the making of an image, which takes seconds, and some minutes on an emulated processor.
const longestBuild = 15 * time.Minute

// Root returns the directory of the whole archive's files, absolute. All labs use it: it must not be changed.
func (b *BuiltIn) Root(ctx context.Context) (dir string, err error) {
	return b.root(ctx, whole)
}

// find returns an application's image and builds it if it is missing. Concurrent callers share one build, which continues when they leave.
func (b *BuiltIn) find(ctx context.Context, a *app.App) (Found, error) {
	flight := b.flights.DoChan(a.Name, func() (any, error) { return b.build(context.WithoutCancel(ctx), a) })
	select {
	case done := <-flight:
		found, _ := done.Val.(Found)
		return found, done.Err
	case <-ctx.Done():
		return Found{}, context.Cause(ctx)
	}
}

// build builds an application's image in the store, unless it is there.
func (b *BuiltIn) build(ctx context.Context, a *app.App) (f Found, err error) {
	b.building.Lock()
	defer b.building.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, longestBuild, fmt.Errorf("not done within %v", longestBuild))
	defer cancel()
	if f.Store, err = b.Open(); err != nil {
		return f, err
	}
	what, base, err := b.describe(a, func(p part) (string, error) { return b.root(ctx, p) })
	if err != nil {
		return f, err
	}
	f.Ref, f.App = what.Name, a.Name
	if base != "" {
		err = assemble(ctx, f.Store, images.Assembly{Name: what.From, Layers: []images.Layer{{Dir: base}}})
	}
	if err == nil {
		err = assemble(ctx, f.Store, what)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return f, err
}

// existing returns an application's image if it is built. [images.ErrNotFound] is in the error's chain where it is not.
func (b *BuiltIn) existing(store *images.Store, a *app.App) (Found, error) {
	what, _, err := b.describe(a, b.existingRoot)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", images.ErrNotFound, err)
	}
	if err == nil {
		_, err = store.Manifest(what.Name)
	}
	return Found{Store: store, Ref: what.Name, App: a.Name}, err
}

// describe returns what an application's image is made of. root returns the directory of a part of the archive, and base is that of the
// image that this one is built from, "" where there is none.
func (b *BuiltIn) describe(a *app.App, root func(part) (string, error)) (what images.Assembly, base string, err error) {
	what = images.Assembly{Entrypoint: a.Entrypoint, Cmd: a.Cmd, Env: a.Env, Ports: a.Ports}
	programs := a.Programs
	if !a.Bare {
		p := small
		if len(a.Programs)+len(a.Brought) == 0 {
			p = whole
		}
		if base, err = root(p); err != nil {
			return what, "", err
		}
		what.From = fmt.Sprintf("%sbase-%s:%s", images.Own, p, strings.TrimPrefix(filepath.Base(base), string(p)+"-"))
		for _, p := range app.Tools {
			if _, err := os.Lstat(filepath.Join(base, p.Path)); errors.Is(err, fs.ErrNotExist) {
				programs = append(programs[:len(programs):len(programs)], p)
			}
		}
	}
	if what.Layers, err = b.layers(a, programs); err == nil {
		what.Name, err = nameOf("built-in/"+a.Name, what)
	}
	return what, base, err
}

// layers returns an application's own.
func (b *BuiltIn) layers(a *app.App, programs []app.Program) (layers []images.Layer, err error) {
	source := b.Program
	var files []images.File
	for _, p := range programs {
		files = append(files, images.File{Path: p.Path, Link: programPath})
	}
	for _, name := range a.Brought {
		if source = b.Brought[path.Base(name)]; source == "" {
			return nil, fmt.Errorf("there is no program for %s", name)
		}
		files = append(files, images.File{Path: name, Link: programPath})
	}
	if len(files) > 0 {
		// By the file itself: labs of several folders share what links there lead to.
		if source, err = filepath.EvalSymlinks(source); err != nil {
			return nil, err
		}
		layers = append(layers, images.Layer{Files: []images.File{{Path: programPath, Source: source}}})
	}
	for _, f := range a.Files {
		files = append(files, images.File{Path: f.Path, Text: f.Text})
	}
	if len(files) > 0 {
		layers = append(layers, images.Layer{Files: files})
	}
	return layers, nil
}

// nameOf names what is made: its tag tells what it is made of.
func nameOf(repository string, what images.Assembly) (string, error) {
	h := sha256.New()
	if err := json.NewEncoder(h).Encode(what); err != nil {
		return "", err
	}
	for _, l := range what.Layers {
		for _, f := range l.Files {
			if err := identify(h, f.Source); err != nil {
				return "", err
			}
		}
	}
	return fmt.Sprintf("%s%s:%.12x", images.Own, repository, h.Sum(nil)), nil
}

// kept is how long an image stays that was made of other things: labs of other programs may run.
const kept = 24 * time.Hour

// assemble makes an image that is not there. Old ones of its repository, which were made of other things, go.
func assemble(ctx context.Context, store *images.Store, what images.Assembly) error {
	if _, err := store.Manifest(what.Name); !errors.Is(err, images.ErrNotFound) {
		return err
	}
	list, err := store.List(ctx)
	if err != nil {
		return err
	}
	if _, err := store.Assemble(ctx, what); err != nil {
		return err
	}
	repository, _, _ := strings.Cut(what.Name, ":")
	for _, old := range list {
		if !strings.HasPrefix(old.Name, repository+":") || time.Since(old.Stored) < kept {
			continue
		}
		if err := store.Remove(ctx, old.Name); err != nil && !errors.Is(err, images.ErrNotFound) { // another lab may have
			return err
		}
	}
	return nil
}

// identify writes what tells a file from any other, and from itself after a change.
func identify(to io.Writer, file string) error {
	if file == "" {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: file, Err: err}
	}
	fmt.Fprintln(to, st.Dev, st.Ino, st.Size, st.Mtim, st.Ctim)
	return nil
}
