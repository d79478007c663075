package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
)

// errUnknownImage is in the chain of Resolve's error for an image that is not there; the message lists those there are.
var errUnknownImage = errors.New("no such image among the built-in applications")

// An App is what an image stands for, as data.
type App struct {
	Name       string   // unique, lower case: "whereami"
	Images     []string // the repositories it answers to, in short form: "erjosito/whereami", "nginx"
	Entrypoint []string // as in the real image's configuration
	Cmd        []string
	Env        []string // the image's environment
	Ports      []int    // TCP ports that it listens on when it runs without arguments
	Programs   []Program
	// Brought are the paths of executables that are not built in: who makes the image brings them.
	Brought []string
	Files   []File // what the image has in its file system besides the distribution's
	Bare    bool   // it has no distribution
}

// A Program is an executable of an image that is built in.
type Program struct {
	Path string // in the container: "/usr/sbin/nginx"
	// Run is the program's main function; it returns the exit status. It calls p.Ready once, when it serves. When ctx ends, it was asked to
	// terminate, and returns within 100 ms if no request is being answered.
	Run func(ctx context.Context, p *Process) int
}

// A File is one of an image's, mode 0644.
type File struct {
	Path string
	Text string
}

// A Process is what a program gets to run with.
type Process struct {
	Args           []string // Args[0] is the program's name
	Env            []string
	Stdout, Stderr io.Writer // safe for concurrent use; each Write of a whole line stays one
	Ready          func()
}

// Program finds the built-in program that a command names, by its path or by its name alone.
func (a *App) Program(name string) (Program, bool) {
	for _, p := range a.Programs {
		if name == p.Path || name == path.Base(p.Path) {
			return p, true
		}
	}
	return Program{}, false
}

// Resolve finds the application of an image reference. Tag and digest are ignored; docker.io/, index.docker.io/ and library/ are the same
// as nothing.
func Resolve(image string) (App, error) {
	repository := shortRepository(image)
	for i := range catalog {
		if slices.Contains(catalog[i].Images, repository) {
			return catalog[i], nil
		}
	}
	return App{}, fmt.Errorf("image %q: %w; there are %s", image, errUnknownImage, strings.Join(Images(), ", "))
}

// shortRepository takes tag, digest and Docker Hub's own names off a reference. A colon before the last slash is a registry's port, not a
// tag.
func shortRepository(image string) string {
	repository, _, _ := strings.Cut(image, "@")
	if colon := strings.LastIndexByte(repository, ':'); colon > strings.LastIndexByte(repository, '/') {
		repository = repository[:colon]
	}
	for _, hub := range []string{"docker.io/", "index.docker.io/", "registry-1.docker.io/"} {
		repository = strings.TrimPrefix(repository, hub)
	}
	return strings.TrimPrefix(repository, "library/")
}

// ByName finds an application by its own name, as Resolve gave it.
func ByName(name string) (App, error) {
	for i := range catalog {
		if catalog[i].Name == name {
			return catalog[i], nil
		}
	}
	return App{}, fmt.Errorf("application %q: %w", name, errUnknownImage)
}

// Images lists the images there are, sorted, in short form.
func Images() []string {
	var images []string
	for i := range catalog {
		images = append(images, catalog[i].Images...)
	}
	slices.Sort(images)
	return images
}

// Servers lists the applications that a VM or an internet host can have, by their own names, sorted: those with a program of ours, which
// needs no image.
func Servers() []string {
	var names []string
	for i := range catalog {
		if len(catalog[i].Programs) > 0 && len(catalog[i].Ports) > 0 {
			names = append(names, catalog[i].Name)
		}
	}
	slices.Sort(names)
	return names
}

// Tools are the programs that an image has where its distribution does not have them.
var Tools = []Program{{"/usr/bin/nslookup", nslookup}}

// FindProgram finds a built-in program of any image, or a tool, by its file name.
func FindProgram(base string) (Program, bool) {
	for _, p := range Tools {
		if path.Base(p.Path) == base {
			return p, true
		}
	}
	for i := range catalog {
		for _, p := range catalog[i].Programs {
			if path.Base(p.Path) == base {
				return p, true
			}
		}
	}
	return Program{}, false
}
