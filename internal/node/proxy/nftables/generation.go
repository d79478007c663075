//go:build linux

package nftables

import (
	"context"

	"github.com/mdlayher/netlink"

	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// Kernel is nf_tables of the node's network namespace.
type Kernel interface {
	// Commit makes a transaction: all messages or none. The error is ERESTART if the rules are of another generation; 0 is any.
	Commit(ctx context.Context, messages []netlink.Message, generation uint32) error
	// Ask sends a request and gives the answers. The error is ENOENT for what is not there.
	Ask(ctx context.Context, request netlink.Message) ([]netlink.Message, error)
}

// Rules are the rules of a network namespace, to which the syncers of both families write, each to its own table. The kernel counts
// generations of all of them together; what one syncer writes changes nothing for the other. It is not safe for concurrent use.
type Rules struct {
	Kernel
	since, until uint32 // the generations after one, up to the other, are each by a transaction of a syncer
}

// NewRules returns the rules of the kernel's namespace.
func NewRules(k Kernel) *Rules { return &Rules{Kernel: k} }

// now returns the generation of the rules.
func (r *Rules) now(ctx context.Context) (uint32, error) {
	answers, err := r.Ask(ctx, nf.GetGeneration())
	return nf.Generation(answers), err
}

// current returns the last generation that differs from another by what syncers wrote alone.
func (r *Rules) current(generation uint32) uint32 {
	if r.since <= generation && generation < r.until {
		return r.until
	}
	return generation
}

// commit makes a transaction of a syncer, for which the rules are of a generation, and moves that on; to 0 if others have written, too.
func (r *Rules) commit(ctx context.Context, messages []netlink.Message, generation *uint32) error {
	before := r.current(*generation)
	if err := r.Commit(ctx, messages, before); err != nil || before == 0 {
		return err
	}
	now, err := r.now(ctx)
	switch now {
	case before: // a transaction that changes nothing makes no generation
	case before + 1:
		if r.until != before {
			r.since = before
		}
		r.until = now
	default:
		now = 0
	}
	*generation = now
	return err
}
