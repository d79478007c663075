package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/base/limitio"
)

const (
	// maxAzureFiles is the most files of a directory that are read.
	maxAzureFiles = 1000
	// maxAzureFile and maxAzureBytes are the most bytes of one file, and of all together.
	maxAzureFile  = 64 << 20
	maxAzureBytes = 256 << 20
)

// azureFiles reads what the az CLI wrote.
type azureFiles struct {
	streams  Streams
	left     int64           // bytes that may still be read
	commands func() []string // that write the files
}

// read reads a file, or all *.json files of a directory; "-" is standard input.
func (a *azureFiles) read(name string, r *armview.Resources) error {
	if name == "-" {
		text, err := limitio.Read(a.streams.In, min(a.left, maxAzureFile))
		if err != nil {
			return fmt.Errorf("read standard input: %w", err)
		}
		return a.add("standard input", text, r)
	}
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%s does not exist; %s", name, a.how(name))
	case err != nil:
		return err
	case !info.IsDir():
		return a.file(name, 0, r)
	}
	entries, err := os.ReadDir(name) // sorted by name
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") {
			names = append(names, filepath.Join(name, e.Name()))
		}
	}
	switch {
	case len(names) == 0:
		return fmt.Errorf("%s has no *.json file; %s", name, a.how(name))
	case len(names) > maxAzureFiles:
		return fmt.Errorf("%s: more than %d files", name, maxAzureFiles)
	}
	for _, n := range names {
		if err := a.file(n, syscall.O_NONBLOCK, r); err != nil { // a pipe without a writer does not hold it
			return err
		}
	}
	return nil
}

// how says how to write the files.
func (a *azureFiles) how(name string) string {
	return "write the files there with:\n  " + strings.Join(a.commands(), "\n  ") +
		"\nand those of the virtual network's resource group (docs/azure-half.md)"
}

// file reads one file. In a directory it has to be a regular one.
func (a *azureFiles) file(name string, flags int, r *armview.Resources) error {
	f, err := os.OpenFile(name, os.O_RDONLY|flags, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || flags != 0 && !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%s is not a regular file", name))
	}
	text, err := limitio.Read(f, min(a.left, maxAzureFile))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return a.add(name, text, r)
}

func (a *azureFiles) add(name string, text []byte, r *armview.Resources) error {
	a.left -= int64(len(text))
	err := r.Read(name, text)
	if _, names := errors.AsType[*armview.ConflictError](err); err != nil && !names {
		return fmt.Errorf("%s: %w", name, err)
	}
	return err
}
