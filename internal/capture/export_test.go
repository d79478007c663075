package capture

import (
	"bytes"
	"slices"
)

// Assemble makes a file with one host's member, whose two files are given, and with an index: a right one, or another whose members are
// where the right ones are.
func Assemble(host, path, data, text string) ([]byte, error) {
	var out bytes.Buffer
	w, err := NewWriter(&out, Head{})
	if err != nil {
		return nil, err
	}
	noted := func(m member) { w.index.Hosts = append(w.index.Hosts, indexHost{Name: "node/n", member: m}) }
	if err := w.write(noted, file{path: "hosts/node/n/host.json", data: []byte(host)}, file{path: path, data: []byte(data)}); err != nil {
		return nil, err
	}
	if text == "" {
		err := w.Close(nil, nil)
		return out.Bytes(), err
	}
	packed, m, err := pack(true, file{path: indexFile, data: []byte(text)})
	if err != nil {
		return nil, err
	}
	m.At = w.at
	return slices.Concat(out.Bytes(), packed, footer(m)), nil
}
