package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/capture/redact"
)

// redaction are the flags of a capture that is redacted.
type redaction struct {
	on   bool
	file string // where the real names go; "" for nowhere
}

func (r *redaction) flags(f *pflag.FlagSet) {
	f.BoolVar(&r.on, "redact", false, "replace addresses and names, the same ones by the same, so that packets walk as before")
	f.StringVar(&r.file, "map", "", "with --redact: write a new file, which only you can read, with what the addresses and names were")
}

// check says what is wrong with the flags, beside that of the capture's own file.
func (r *redaction) check(output string) error {
	if r.file == "" {
		return nil
	}
	if !r.on {
		return errors.New("--map goes with --redact")
	}
	if r.file == "-" {
		return errors.New("--map -: it is as secret as the capture's own names; name a file")
	}
	a, err := filepath.Abs(r.file)
	b, err2 := filepath.Abs(output)
	if a == b {
		return errors.New("-o and --map name the same file")
	}
	if _, there := os.Lstat(r.file); there == nil {
		return fmt.Errorf("--map %s: %w; name a new file", r.file, fs.ErrExist)
	}
	return errors.Join(err, err2)
}

// write runs a function that makes a capture, and gives it a function to save its originals. The file is made before, for its owner alone,
// and is removed where the capture fails. An existing file, also a link, is an error.
func (r *redaction) write(take func(save func(*redact.Originals) error) error) (err error) {
	if r.file == "" {
		return take(func(*redact.Originals) error { return nil })
	}
	f, err := os.OpenFile(r.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // O_EXCL follows no link (open(2))
	if err != nil {
		return badInput{fmt.Errorf("--map: %w", err)}
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(r.file))
		}
	}()
	return take(func(originals *redact.Originals) error {
		text, err := json.MarshalIndent(originals, "", "  ")
		if err == nil {
			_, err = f.Write(append(text, '\n'))
		}
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return fmt.Errorf("--map: %w", err)
		}
		return nil
	})
}
