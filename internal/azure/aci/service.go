package aci

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"packetwalk.dev/internal/base/logs"
)

// Service is Azure Container Instances: what the HTTP interface serves, and what a Client gives back on the other side. Groups are known by
// their names; the resource group is the service's. Errors that are Azure's to a caller are of type *Error.
type Service interface {
	Groups
	Containers
}

// Groups are a service's container groups.
type Groups interface {
	// Put makes a group. One that is there under this name is an error unless it is the same.
	Put(ctx context.Context, g ContainerGroup) (ContainerGroup, error)
	Get(ctx context.Context, name string) (ContainerGroup, error)
	List(ctx context.Context) ([]ContainerGroup, error)
	// Delete ends a group, its containers within grace, and returns when nothing is left of it. With a uid, a group whose tag TagUID is
	// another one stays, and that is a conflict.
	Delete(ctx context.Context, name, uid string, grace time.Duration) error
}

// Containers are the containers of a service's groups.
type Containers interface {
	// Logs copies a container's log to w.
	Logs(ctx context.Context, group, container string, o logs.Options, w io.Writer) error
	// Exec runs a command in a container and gives its exit status.
	Exec(ctx context.Context, group, container string, e Exec) (code int, err error)
}

// TagUID is the tag that tells two groups of one name apart: the pod's UID (virtual-kubelet/azure-aci, provider/aci.go).
const TagUID = "UID"

// Exec is a command to run. Nil streams are not there.
type Exec struct {
	Command        []string
	TTY            bool
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
}

// Size is a terminal's, in characters.
type Size = struct{ Width, Height uint16 }

// Error is an answer of Azure's that is none of success.
type Error struct {
	Status  int    `json:"-"` // HTTP's
	Code    string `json:"code"`
	Message string `json:"message"`
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Code, e.Message) }

// NotFound returns the error for a group that does not exist.
func NotFound(group string) *Error {
	return &Error{http.StatusNotFound, "ResourceNotFound", fmt.Sprintf("The Resource '%s/%s' was not found.", Type, group)}
}

// BadRequest returns the error for a request that makes no sense.
func BadRequest(code, format string, a ...any) *Error {
	return &Error{http.StatusBadRequest, code, fmt.Sprintf(format, a...)}
}

// Conflict returns the error for what cannot be done as things are.
func Conflict(code, format string, a ...any) *Error {
	return &Error{http.StatusConflict, code, fmt.Sprintf(format, a...)}
}

// IsNotFound reports whether an error says that the resource is not there.
func IsNotFound(err error) bool { return is(err, http.StatusNotFound) }

// IsConflict reports whether an error says that the resource is not as it would have to be.
func IsConflict(err error) bool { return is(err, http.StatusConflict) }

func is(err error, status int) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == status
}
