// Package source finds what containers are made from, in one order: an image of the machine's store, then the image of a built-in
// application by its name, which is made first if it must be, then what the image's registry has, which is pulled into the store.
package source

import (
	"context"
	"errors"
	"strings"

	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/pull"
)

// A Request is for a container's image.
type Request struct {
	Ref   string
	Never bool // it must not be pulled
	// Pulling is called when it is about to be; may be nil.
	Pulling func()
}

// A Finder finds images.
type Finder struct {
	// Ensure has a store with the image, if it can: pulled tells that it came now. The error is why it cannot; the store, nil where that
	// cannot be opened, may have an older one.
	Ensure func(ctx context.Context, r Request) (store *images.Store, pulled bool, err error)
	// Own reports whether an image is one of packetwalk's programs, which no registry has.
	Own func(ref string) bool
	// BuiltIn makes the images of built-in applications. NoNames has the names of others mean what their registries have.
	BuiltIn *BuiltIn
	NoNames bool
}

// A Found image is one of a store's, by the name that it has there.
type Found struct {
	Store  *images.Store
	Ref    string
	App    string // the built-in application that it is of; "" for an image of others
	Pulled bool   // it came now
}

// Find finds an image. A digest never means a built-in application: it names an image's very bytes. [images.ErrNotFound] is in the error's
// chain where there is none.
func (f *Finder) Find(ctx context.Context, r Request) (Found, error) {
	a, named := f.application(r.Ref)
	if named {
		store, err := f.BuiltIn.Open()
		if err != nil {
			return Found{}, err
		}
		if _, err := store.Manifest(r.Ref); errors.Is(err, images.ErrNotFound) {
			return f.BuiltIn.find(ctx, a)
		}
	}
	store, pulled, missing := f.Ensure(ctx, r)
	switch {
	case ctx.Err() != nil:
		return Found{}, ctx.Err()
	case store == nil:
		return Found{}, missing
	}
	_, err := store.Manifest(r.Ref)
	if errors.Is(err, images.ErrNotFound) {
		err = pull.Why(r.Ref, missing)
	}
	return Found{Store: store, Ref: r.Ref, Pulled: pulled}, err
}

// Existing returns what Find would, of what the store has: it builds and pulls nothing. [images.ErrNotFound] is in the error's chain where
// the store has no image.
func (f *Finder) Existing(ref string) (Found, error) {
	store, err := f.BuiltIn.Open()
	if err != nil {
		return Found{}, err
	}
	_, err = store.Manifest(ref)
	if a, named := f.application(ref); named && errors.Is(err, images.ErrNotFound) {
		return f.BuiltIn.existing(store, a)
	}
	return Found{Store: store, Ref: ref}, err
}

// application returns the built-in application that an image's name means.
func (f *Finder) application(ref string) (a *app.App, ok bool) {
	found, err := app.Resolve(ref)
	return &found, err == nil && !strings.Contains(ref, "@") && (!f.NoNames || f.Own(ref))
}
