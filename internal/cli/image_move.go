//go:build linux

package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/base/pause"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/isolation"
)

// moveTime limits how long a node may take to fetch an image again.
const moveTime = 2 * time.Minute

// fetchAgain fetches an image on a node that has another one of that name. A node that lacks the name fetches it when a pod needs it. The label
// is containerd's for images of the kubelet. Exit status 75 (EX_TEMPFAIL) says that containerd does not answer.
const fetchAgain = `all=$(ctr -n k8s.io images ls "name==$1") || exit 75
has=$(echo "$all" | sed -n '2s/.* \(sha256:[0-9a-f]*\) .*/\1/p')
[ -n "$has" ] && [ "$has" != "$2" ] || exit 0
ctr -n k8s.io images pull --hosts-dir /etc/containerd/certs.d --label io.cri-containerd.image=managed "$1" >/dev/null && echo moved`

// moveTags gives the nodes of all labs that had other images of these names the new ones, as "kind load" does. Pods that start then run them,
// whatever their pull policy is.
func moveTags(ctx context.Context, out, warnings io.Writer, loaded ...images.Image) error {
	labs, err := lab.List()
	if err != nil || len(labs) == 0 {
		return err
	}
	bin, err := lab.FindBinaries()
	if err != nil {
		fmt.Fprintf(warnings, "nodes of running labs keep the images that they have: %v\n", err)
		return nil
	}
	var errs error
	for _, d := range labs {
		for _, node := range d.Machines() {
			for _, i := range loaded {
				full, isTag := images.FullTag(i.Name)
				if !isTag {
					continue
				}
				moved, err := moveTag(ctx, warnings, bin, d, node.Name, full, i.Digest)
				if err != nil {
					errs = errors.Join(errs, fmt.Errorf("move %s on node %s of lab %s: %w; pods there run the old image", i.Name, node.Name, d.Name(), err))
				}
				if moved {
					fmt.Fprintf(out, "moved on node %s of lab %s; new pods run it\n", node.Name, d.Name())
				}
			}
		}
	}
	return errs
}

// awayTime limits how long a node's container runtime may be away: one that hangs is started again within a minute.
const awayTime = time.Minute

var errAway = errors.New("the container runtime does not answer")

// moveTag moves a tag on a node, which may go down or start its container runtime again meanwhile.
func moveTag(ctx context.Context, warnings io.Writer, bin layout.Binaries, d lab.Dir, node, tag, digest string) (moved bool, err error) {
	for began, said := time.Now(), false; ; said = true {
		machines := d.Machines()
		at := slices.IndexFunc(machines, func(m layout.CommandTarget) bool { return m.Name == node })
		if at < 0 {
			return false, nil
		}
		moved, err = fetchOn(ctx, bin, machines[at], tag, digest)
		if errors.Is(err, errAway) && !said {
			fmt.Fprintf(warnings, "node %s of lab %s: %v; waiting for up to %v\n", node, d.Name(), errAway, awayTime)
		}
		if !errors.Is(err, errAway) || time.Since(began) > awayTime || !pause.For(ctx, time.Second) {
			return moved, err
		}
	}
}

func fetchOn(ctx context.Context, bin layout.Binaries, node layout.CommandTarget, tag, digest string) (moved bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, moveTime)
	defer cancel()
	var said, failed nodeOutput
	command := isolation.HostCommand{Hostname: node.Name, Machine: node.Machine, Args: []string{"sh", "-c", fetchAgain, "sh", tag, digest}}
	status, err := command.Run(ctx, bin.App, nil, &said, &failed)
	switch text := strings.TrimSpace(failed.buffer.String()); {
	case err == nil && status == 75:
		err = fmt.Errorf("%w: %s", errAway, text)
	case err == nil && status != 0:
		err = errors.New(text)
	}
	return err == nil && said.buffer.Len() > 0, err
}

// nodeOutput keeps the first 4 KiB of what a node prints.
type nodeOutput struct{ buffer bytes.Buffer }

func (o *nodeOutput) Write(b []byte) (int, error) {
	o.buffer.Write(b[:min(len(b), 4<<10-o.buffer.Len())])
	return len(b), nil
}
