// Command picture draws a lab from a capture as SVG: its hosts, and on them the way of one packet with the source and the destination that
// it has on each wire, and the rules that change them. It prints the picture:
//
//	go run ./tools/picture CAPTURE FROM TO > docs/lab.svg
//
// FROM, an internet host, and TO are ends as 'packetwalk walk' takes them; the way is that of the walk's first outcome.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"packetwalk.dev/internal/answer/explain"
	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/cli"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: picture CAPTURE FROM TO")
		os.Exit(2)
	}
	svg, err := picture(os.Args[1], os.Args[2], os.Args[3])
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
	fmt.Print(svg)
}

// picture draws the lab of a capture and the packet's way through it.
func picture(file, from, to string) (string, error) {
	taken, err := capture.Open(file)
	if err != nil {
		return "", err
	}
	defer taken.Close()
	l, err := readLab(capture.NewSource(taken.Origin()))
	if err != nil {
		return "", err
	}
	var out, errs bytes.Buffer
	args := []string{"walk", "--snapshot", file, "--from", from, "--to", to, "--choose", "1", "-o", "json"}
	if status := cli.Main(args, cli.Streams{In: os.Stdin, Out: &out, Err: &errs}); status != 0 {
		return "", fmt.Errorf("the walk ends with status %d: %s", status, errs.String())
	}
	var walk explain.Document
	if err := json.Unmarshal(out.Bytes(), &walk); err != nil {
		return "", err
	}
	if len(walk.Outcomes) == 0 {
		return "", fmt.Errorf("the walk from %s to %s has no outcome", from, to)
	}
	outcome := walk.Outcomes[0]
	if !slices.ContainsFunc(l.internet, func(h host) bool { return h.id == outcome.Results[0].Node }) {
		return "", fmt.Errorf("the picture is of packets from an internet host, and %s is none", from)
	}
	return draw(l, outcome), nil
}
