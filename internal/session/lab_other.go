//go:build !linux

package session

import (
	"context"
	"errors"

	"packetwalk.dev/internal/capture"
)

// ErrLinux says that something needs the Linux kernel, and how to get one.
var ErrLinux = errors.New("labs, and captures of this machine, need Linux: run packetwalk in a virtual machine, such as WSL 2 or Lima")

// OpenLab returns ErrLinux.
func OpenLab(context.Context, string) (*Session, error) { return nil, ErrLinux }

// LabOrigin returns ErrLinux.
func LabOrigin(context.Context, string) (capture.Origin, error) { return capture.Origin{}, ErrLinux }

// MachineOrigin returns ErrLinux.
func MachineOrigin(context.Context, string) (capture.Origin, error) {
	return capture.Origin{}, ErrLinux
}

// loadNFT returns an error: only the kernel's own nft reads its syntax.
func loadNFT([]byte) ([]byte, error) {
	return nil, errors.New(`nft's own syntax is read by nft, which needs Linux; paste what "nft -j list ruleset" prints`)
}
