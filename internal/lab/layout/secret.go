package layout

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"packetwalk.dev/internal/base/atomicfile"
)

// Secret returns a secret of the lab: 32 bytes in base64, in a file. It creates the secret once in the lab's life. An empty file is an
// error, because it would let every client in.
func Secret(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		text = make([]byte, 32)
		_, _ = rand.Read(text) // never fails (crypto/rand)
		text = base64.StdEncoding.AppendEncode(nil, text)
		err = atomicfile.Write(path, text, 0o600)
	}
	if err == nil && len(text) == 0 {
		err = fmt.Errorf("%s is empty; remove it to have one made", path)
	}
	return string(text), err
}

// AzureToken returns the bearer token for Azure's management endpoint.
func (d Dir) AzureToken() (string, error) { return Secret(d.Path("pki", "azure-token")) }

// AzureAddress returns the file with the address on 127.0.0.1 of Azure's management endpoint.
func (d Dir) AzureAddress() string { return d.Path("azure-address") }

// CA returns the file with the certificate of the lab's authority.
func (d Dir) CA() string { return d.Path("pki", "ca.crt") }
