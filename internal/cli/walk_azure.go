package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"packetwalk.dev/internal/azure/armread"
	"packetwalk.dev/internal/azure/armview"
	"packetwalk.dev/internal/base/bounded"
	"packetwalk.dev/internal/model/snapshot"
)

// byLogin is the value of --azure that stands for the user's own login.
const byLogin = "login"

// azureOptions is where a walk has Azure's resources from: nothing, the login, or files.
type azureOptions []string

// flag adds --azure.
func (a *azureOptions) flag(f *pflag.FlagSet) {
	f.StringSliceVar((*[]string)(a), "azure", nil,
		"go on past the nodes through Azure, by your own login; --azure=DIR or --azure=FILE,… by what the az CLI wrote")
	f.Lookup("azure").NoOptDefVal = byLogin
}

// extend makes a world go on through Azure, where that was asked for.
func (a azureOptions) extend(ctx context.Context, s Streams, w *world) error {
	if len(a) == 0 {
		return nil
	}
	resources, err := a.read(ctx, s, w.Source)
	if err != nil {
		return err
	}
	extended := armview.Extend(w.Source, resources)
	w.Source = extended
	w.notes = append(w.notes, extended.Notes()...)
	if again := w.again; again != nil {
		w.again = func(ctx context.Context) (snapshot.Source, error) {
			fresh, err := again(ctx)
			if err != nil {
				return nil, err
			}
			return armview.Extend(fresh, resources), nil
		}
	}
	return nil
}

func (a azureOptions) read(ctx context.Context, s Streams, src snapshot.Source) (*armview.Resources, error) {
	resources := armview.NewResources()
	for _, name := range a {
		switch {
		case name == byLogin || strings.HasPrefix(strings.ToLower(name), "/subscriptions/"):
			scopes, err := azureScopes(name, src)
			if err != nil {
				return nil, err
			}
			if err := armread.Login(ctx, resources, scopes); err != nil {
				return nil, err
			}
		default:
			if err := readAzureFiles(s, name, resources); err != nil {
				return nil, badInput{fmt.Errorf("--azure: %w", err)}
			}
		}
	}
	return resources, nil
}

// azureScopes are the resources that reading begins with: the nodes' own, or the one that was named.
func azureScopes(name string, src snapshot.Source) ([]string, error) {
	if name != byLogin {
		return []string{name}, nil
	}
	var all []string
	for _, n := range src.Objects().Nodes {
		if id, ok := strings.CutPrefix(n.ProviderID, "azure://"); ok {
			all = append(all, id)
		}
	}
	if len(all) == 0 {
		return nil, badInput{errors.New("--azure: no node has a providerID of Azure; " +
			"write --azure=/subscriptions/ID/resourceGroups/MC_… or files")}
	}
	return all, nil
}

// maxAzureFiles bounds a directory's files that are read.
const maxAzureFiles = 1000

// readAzureFiles reads a file, or all *.json files of a directory.
func readAzureFiles(s Streams, name string, r *armview.Resources) error {
	names := []string{name}
	info, err := os.Stat(name)
	if err == nil && info.IsDir() {
		if names, err = filepath.Glob(filepath.Join(globQuoted(name), "*.json")); err == nil && len(names) == 0 {
			err = errors.New("there is no *.json file in it; save there what az … -o json prints (docs/azure-half.md lists the commands)")
		}
	}
	if err != nil && name != "-" {
		return fmt.Errorf("%s: %w", name, err)
	}
	if len(names) > maxAzureFiles {
		return fmt.Errorf("%s: more than %d files", name, maxAzureFiles)
	}
	slices.Sort(names)
	for _, n := range names {
		text, err := readAzureFile(s, n)
		if err != nil {
			return err
		}
		if err := r.Read(text); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
	}
	return nil
}

// maxAzureFile is the most octets of one file.
const maxAzureFile = 64 << 20

// readAzureFile reads a file; "-" is standard input.
func readAzureFile(s Streams, name string) ([]byte, error) {
	in := s.In
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := bounded.Read(in, maxAzureFile)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return text, nil
}

// globQuoted makes a name mean itself in a pattern.
func globQuoted(name string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(name)
}
