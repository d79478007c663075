package dump

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/kernel/netns"
)

// batches groups the rows that one process can print: commands of ip with the same options. Every other row is a group by itself.
func batches(rows []capture.Dump) (groups [][]capture.Dump) {
	at := map[string]int{} // the group of ip's options
	for _, row := range rows {
		options, _, ok := ipCommand(row)
		key := strings.Join(options, " ")
		if i, found := at[key]; ok && found {
			groups[i] = append(groups[i], row)
			continue
		}
		if ok {
			at[key] = len(groups)
		}
		groups = append(groups, []capture.Dump{row})
	}
	return groups
}

// ipCommand splits a command of ip that prints JSON into its options and what follows them. It returns false for "ip link", which would set
// a flag for the commands after it (ip/ipaddress.c, do_link).
func ipCommand(row capture.Dump) (options, command []string, ok bool) {
	if len(row.Commands) != 1 || row.Commands[0][0] != "ip" || !slices.Contains(row.Commands[0], "-j") {
		return nil, nil, false
	}
	args := row.Commands[0][1:]
	n := slices.IndexFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") })
	return args[:n], args[n:], args[n] != "link"
}

// batchLimit bounds a batch: what takes longer is asked one by one.
const batchLimit = 20 * time.Second

// batch runs several commands of ip in one process ("ip -batch", ip(8)), because a process costs more than what it prints. It returns false
// if that is not possible or a command fails; each command then runs alone.
func (d *Dumper) batch(ctx context.Context, ns *netns.Namespace, rows []capture.Dump) (outputs []capture.Output, ok bool) {
	if len(rows) < 2 || slices.ContainsFunc(rows, func(row capture.Dump) bool { why, err := skip(ns, row, nil); return why != "" || err != nil }) {
		return nil, false
	}
	options, _, _ := ipCommand(rows[0])
	tools := d.tools(slices.Concat([]string{"ip"}, options, []string{"-batch", "-"}))
	if len(tools) == 0 {
		return nil, false
	}
	tool := tools[0]
	tool.In, tool.Limit = ns.Do, cmp.Or(d.limit, batchLimit)
	for _, row := range rows {
		_, command, _ := ipCommand(row)
		tool.Stdin = append(tool.Stdin, strings.Join(command, " ")+"\n"...)
	}
	data, err := tool.Output(ctx)
	texts, whole := splitJSON(data)
	if err != nil || !whole || len(texts) != len(rows) {
		return nil, false
	}
	for i, row := range rows {
		outputs = append(outputs, capture.Output{Command: strings.Join(row.Commands[0], " "), Data: append(texts[i], '\n')})
	}
	return outputs, true
}

// splitJSON splits JSON values that follow each other; whole is false if the text is not only such values.
func splitJSON(data []byte) (texts []json.RawMessage, whole bool) {
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		var text json.RawMessage
		if err := d.Decode(&text); err != nil {
			return texts, err == io.EOF
		}
		texts = append(texts, text)
	}
}
