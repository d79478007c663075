package cni

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// codeExists is this plugin's own code (the specification leaves 100 and above to plugins): the container has this interface already.
const codeExists uint = 100

// codedError is an error with the specification's code for it (section 5, "Error").
type codedError struct {
	code uint
	err  error
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

func coded(code uint, err error) error {
	if err == nil {
		return nil
	}
	return &codedError{code, err}
}

// cniError turns any error into the specification's error object: the innermost call that knew a code chose it, else 999 (internal).
func cniError(err error) error {
	if err == nil {
		return nil
	}
	code := types.ErrInternal
	var c *codedError
	if errors.As(err, &c) {
		code = c.code
	}
	return types.NewError(code, err.Error(), "")
}

// joinedError is errors.Join on one line: a CNI error is a line in a runtime's log.
type joinedError []error

func (j joinedError) Error() string {
	words := make([]string, len(j))
	for i, err := range j {
		words[i] = err.Error()
	}
	return strings.Join(words, "; ")
}

func (j joinedError) Unwrap() []error { return j }

// joined returns nil for no errors, and leaves out nil ones.
func joined(errs []error) error {
	var j joinedError
	for _, err := range errs {
		if err != nil {
			j = append(j, err)
		}
	}
	if len(j) == 0 {
		return nil
	}
	return j
}

// undo is what takes back, last first, what has been done so far.
type undo []func() error

func (u *undo) add(f func() error) {
	if f != nil {
		*u = append(*u, f)
	}
}

func (u undo) run() error {
	var errs []error
	for i := len(u) - 1; i >= 0; i-- {
		errs = append(errs, u[i]())
	}
	return joined(errs)
}
