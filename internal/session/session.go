// Package session opens what packets walk through: a lab that runs, a file, or a cluster. What a command does with it is the same for all
// three.
package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/answer/endpoint"
	"packetwalk.dev/internal/answer/proof"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/model/walk"
	"packetwalk.dev/internal/model/witness"
	"packetwalk.dev/internal/usercluster"
)

// Session is an open lab, file or cluster. It implements proof.Subject.
type Session struct {
	Taken    time.Time // of the states; zero where they are read now
	Redacted bool      // addresses and names are replaced
	Resolves bool      // a cluster's pods may be made to look names up
	Text     bool      // the states are what a text shows
	// Lines are the fates of the text's lines, and RedactedNames the names of its redacted addresses.
	Lines         snapshot.Account
	RedactedNames map[netip.Addr]string
	Notes         []string // about the states, for the user
	// Assumed is what reading the states had to assume.
	Assumed []walk.Assumption
	// Unread is why Kubernetes objects, or some of them, are unknown; nil where they are known.
	Unread error
	// Lab has what only a lab knows, and Cluster what only a cluster knows. Each is nil for the others.
	Lab     Lab
	Cluster *usercluster.View

	backend   backend
	source    snapshot.Source
	resources *armview.Resources // of Azure; nil where walks end at the nodes
}

// backend is what a session reads.
type backend interface {
	// read reads the states, or prepares to read each host when it is asked for.
	read(ctx context.Context) (snapshot.Source, error)
	// place returns the place of a host, as proof.Places does.
	place(host string) (proof.Place, error)
	close(ctx context.Context) error
}

// hostReader is a backend whose hosts are read on demand. Before that the source returns an UnreadError for them.
type hostReader interface {
	// readHosts reads some hosts and reports whether it tried any that it had not tried before.
	readHosts(ctx context.Context, hosts []string) bool
}

// Lab is what only a running lab knows.
type Lab interface {
	// PublicAddresses returns the public addresses of VMs, by the names of these.
	PublicAddresses() map[string]netip.Addr
	// LookUp asks the resolver of a host for the addresses of a name; without a host, Azure's.
	LookUp(ctx context.Context, host, name string) (witness.Lookup, error)
	// Frontends returns the front ends of the load balancer.
	Frontends() []Frontend
	// Outbound returns how far nodes' ports for outbound connections are used.
	Outbound() []Outbound
	// Problems returns what is broken, in words.
	Problems() []string
	// Namespaces returns the hosts that there are now, by the inode numbers of their network namespaces.
	Namespaces() (map[uint64]string, error)
}

// Frontend is a front end of a lab's load balancer.
type Frontend struct {
	Address string
	Port    uint16
	Healthy int // back ends whose probe succeeds
	Total   int // back ends
	// Probed has the machines whose probe fails, and where the load balancer probes them.
	Probed map[string]netip.AddrPort
}

// Outbound is how far a node's ports for outbound connections (SNAT ports) are used.
type Outbound struct {
	Node         string
	Ports, InUse int
	Fullest      string // the destination that has most of them: "tcp 198.51.100.10:80"; "" for none
	Percent      int    // of the ports towards it
	// Frontends has how many ports it has on each public address.
	Frontends map[netip.Addr]int
}

// InputError marks an error that the user can correct.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *InputError) Unwrap() error { return e.Err }

// Source implements proof.Subject.
func (s *Session) Source() snapshot.Source { return s.source }

// Place implements proof.Subject. A host that can no longer be read has no place.
func (s *Session) Place(host string) (proof.Place, error) { return s.backend.place(host) }

// Close gives back what was opened, also when ctx has ended. The error says what is left.
func (s *Session) Close(ctx context.Context) error { return s.backend.close(ctx) }

// World returns what the ends of a walk are read against; at is the host where a packet comes in whose sender is unknown, or "".
func (s *Session) World(ctx context.Context, at string) endpoint.World {
	w := endpoint.World{Source: s.source, Unread: s.Unread, At: at, Far: s.Cluster != nil}
	if s.Lab != nil {
		w.Public = s.Lab.PublicAddresses
		w.LookUp = func(host, name string) (witness.Lookup, error) { return s.Lab.LookUp(ctx, host, name) }
	}
	if s.Cluster != nil && s.Resolves {
		w.LookUp = func(host, name string) (witness.Lookup, error) { return s.Cluster.LookUp(ctx, host, name) }
	}
	return w
}

// ExtendAzure lets walks go on past the nodes through Azure's resources. The error is an armview.MismatchError where these are of other
// nodes.
func (s *Session) ExtendAzure(resources *armview.Resources) error {
	extended, err := armview.Extend(s.source, resources)
	if err == nil && len(resources.Unread) == 0 {
		err = extended.Unmatched()
	}
	if err != nil {
		return err
	}
	s.source, s.resources = extended, resources
	s.Notes = append(s.Notes, extended.Notes()...)
	return nil
}

// AssumedInterfaces returns an assumption for each host of some whose interface in Azure is known by its address alone.
func (s *Session) AssumedInterfaces(hosts []string) (assumed []walk.Assumption) {
	extended, ok := s.source.(*armview.AzureSource)
	if !ok {
		return nil
	}
	for _, host := range hosts {
		if what := extended.Assumed(host); what != "" {
			assumed = append(assumed, walk.Assumption{Host: host, What: what})
		}
	}
	return assumed
}

// Walk implements proof.Subject.
func (s *Session) Walk(ctx context.Context, request walk.Request) (*walk.Result, error) {
	return s.WalkSome(ctx, request, func(outcomes []walk.Outcome) []walk.Outcome { return outcomes })
}

// WalkSome does what Walk does for the outcomes that choose returns. It does not read hosts that only the others lead to.
func (s *Session) WalkSome(
	ctx context.Context, request walk.Request, choose func([]walk.Outcome) []walk.Outcome,
) (*walk.Result, error) {
	reader, onDemand := s.backend.(hostReader)
	for {
		result, err := walk.WalkContext(ctx, s.source, request)
		unread, ok := errors.AsType[*snapshot.UnreadError](err)
		if err != nil && !ok {
			return nil, err
		}
		var hosts []string
		if ok {
			hosts = []string{unread.Host}
		} else {
			hosts = unreadHosts(choose(result.Outcomes))
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case onDemand && reader.readHosts(ctx, hosts):
		case ok:
			return nil, unread
		default:
			return result, nil
		}
	}
}

// unreadHosts returns the hosts that are not read at which the packet or its answer ends.
func unreadHosts(outcomes []walk.Outcome) (hosts []string) {
	for i := range outcomes {
		for _, e := range []*walk.End{&outcomes[i].End, outcomes[i].BackEnd} {
			if e != nil && e.Unread {
				hosts = append(hosts, e.Host)
			}
		}
	}
	return hosts
}

// Read implements proof.Subject.
func (s *Session) Read(ctx context.Context, hosts []string) []string {
	if reader, ok := s.backend.(hostReader); ok {
		reader.readHosts(ctx, hosts)
	}
	return slices.DeleteFunc(slices.Clone(hosts), func(host string) bool {
		_, err := s.source.Host(host)
		return err != nil
	})
}

// Refresh implements proof.Subject.
func (s *Session) Refresh(ctx context.Context, hosts []string) ([]string, error) {
	fresh, err := s.readAgain(ctx)
	if err != nil {
		return nil, err
	}
	var changes []string
	for _, name := range hosts {
		before, err := s.source.Host(name)
		if err != nil {
			continue // it was not known before
		}
		after, err := fresh.Host(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			changes = append(changes, name+", which is gone")
			continue
		case err != nil:
			return nil, err
		}
		for _, part := range snapshot.Changes(before, after) {
			changes = append(changes, fmt.Sprintf("%s: %s", name, part))
		}
	}
	if len(changes) > 0 {
		s.source = fresh
	}
	return changes, nil
}

// Reread reads the states again.
func (s *Session) Reread(ctx context.Context) error {
	fresh, err := s.readAgain(ctx)
	if err == nil {
		s.source = fresh
	}
	return err
}

func (s *Session) readAgain(ctx context.Context) (snapshot.Source, error) {
	fresh, err := s.backend.read(ctx)
	if err == nil && s.resources != nil {
		return armview.Extend(fresh, s.resources)
	}
	return fresh, err
}

// setUnread notes why Kubernetes objects are unknown; nil where they are known.
func (s *Session) setUnread(err error) {
	if s.Unread = err; err == nil {
		return
	}
	lines := strings.Split(err.Error(), "\n")
	lines[0] = "not all Kubernetes objects are known: " + lines[0]
	s.Notes = append(s.Notes, lines...)
}
