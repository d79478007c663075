package cniinstall

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/limitio"
)

// Plugin is packetwalk's own plugin, which a node gets from packetwalk only.
const Plugin = "packetwalk-cni"

const (
	maxPlugin = 256 << 20 // of a program, in bytes
	maxConfig = 1 << 20   // of a configuration
)

// Dirs are the directories of a node, as the process sees them.
type Dirs struct {
	Bin  string // of plugins (/opt/cni/bin)
	Conf string // of network configurations (/etc/cni/net.d)
}

// Options are what is to be installed.
type Options struct {
	Dirs
	Sources  []string // the directories of the programs that there are to install, the first that has one
	Name     string   // of the configuration's file
	Conflist []byte   // JSON
	Owner    string   // who installs: one who has not installed last removes nothing
}

var (
	fileName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)
	confExts = []string{".conf", ".conflist", ".json"} // that runtimes read (containernetworking/cni libcni.ConfFiles)
)

// Plugins are the names of the plugins of a network configuration list, which must be one.
func Plugins(conflist []byte) (names []string, err error) {
	var list struct {
		CNIVersion string
		Name       string
		Plugins    []struct{ Type string }
	}
	if err := json.Unmarshal(conflist, &list); err != nil {
		return nil, fmt.Errorf("read the network configuration list: %w", err)
	}
	if list.CNIVersion == "" || list.Name == "" || len(list.Plugins) == 0 {
		return nil, errors.New("the network configuration list has no cniVersion, no name or no plugins")
	}
	for _, p := range list.Plugins {
		if !fileName.MatchString(p.Type) {
			return nil, fmt.Errorf("the network configuration list has the plugin %q, which is no name of a program", p.Type)
		}
		names = append(names, p.Type)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Install makes the node have the configuration and its plugins: those that the source has, the others must be there. It changes nothing
// where all is as it should be. A file of others is left: a plugin of theirs is used, and noted; it is an error where it has the
// configuration's name, or that of our own plugin. Where these two are what is to be installed they count as written by us: a node may lose
// the record, which is in /etc, at a restart, and keep its plugins.
func Install(o Options) (notes []string, err error) {
	if !fileName.MatchString(o.Name) || filepath.Ext(o.Name) != ".conflist" {
		return nil, fmt.Errorf("%q is no name of a network configuration list; write one such as 10-packetwalk.conflist", o.Name)
	}
	plugins, err := Plugins(o.Conflist)
	if err != nil {
		return nil, err
	}
	n, err := open(o.Dirs)
	if err != nil {
		return nil, err
	}
	defer n.close()
	for _, name := range plugins {
		note, err := n.wantPlugin(o.Sources, name)
		if err != nil {
			return nil, err
		}
		notes = append(notes, note...)
	}
	if err := n.wantConfig(o.Name, o.Conflist); err != nil {
		return nil, err
	}
	if err := n.apply(o.Owner); err != nil {
		return nil, err
	}
	first, err := n.firstConfig()
	if err == nil && first != "" && first != o.Name {
		notes = append(notes, fmt.Sprintf("%s comes before %s: runtimes take the first by name", first, o.Name))
	}
	return notes, err
}

// wantPlugin finds out what a plugin is to become.
func (n *node) wantPlugin(sources []string, name string) (notes []string, err error) {
	var data []byte
	absent := true
	for _, source := range sources {
		data, err = limitio.ReadFile(filepath.Join(source, name), maxPlugin)
		if absent = errors.Is(err, fs.ErrNotExist); !absent {
			break
		}
	}
	if err != nil && !absent {
		return nil, err
	}
	at := place{binDir, name}
	have, err := n.hash(at, maxPlugin)
	switch {
	case err != nil:
		return nil, err
	case absent && have == "":
		return nil, fmt.Errorf("the plugin %s is neither in %s nor on the node: take it out of the configuration, or install it", name,
			strings.Join(sources, ", "))
	case absent && n.record.has(at, have): // of a version before
		n.kept[at.key()] = []string{have}
	case absent:
		return []string{fmt.Sprintf("the plugin %s that the node has is used", name)}, nil
	case have == "" || n.record.has(at, have), name == Plugin && have == hashOf(data): // the last where a record was lost
		n.wanted = append(n.wanted, file{at, data, 0o755})
	case have == hashOf(data): // it is right, and stays when ours go
	case name == Plugin:
		return nil, fmt.Errorf("the node has a %s that was not installed by this: remove it first", name)
	default:
		return []string{fmt.Sprintf("the plugin %s that the node has is used; it is not the one to install", name)}, nil
	}
	return nil, nil
}

func (n *node) wantConfig(name string, data []byte) error {
	at := place{confDir, name}
	have, err := n.hash(at, maxConfig)
	if err != nil {
		return err
	}
	if have != "" && have != hashOf(data) && !n.record.has(at, have) {
		return fmt.Errorf("the node has a %s that was not installed by this: remove it, or choose another name", name)
	}
	n.wanted = append(n.wanted, file{at, data, 0o600})
	return nil
}

// apply writes what is wanted, removes what was written before and is not wanted any more, and has the record right at each moment: first
// of what was and of what will be.
func (n *node) apply(owner string) error {
	after := record{Owner: owner, Files: maps.Clone(n.kept)}
	before := record{Owner: owner, Files: map[string][]string{}}
	for key, hashes := range n.record.Files {
		before.Files[key] = slices.Clone(hashes)
	}
	var missing []file
	for _, f := range n.wanted {
		hash := hashOf(f.data)
		after.Files[f.key()] = []string{hash}
		if have, err := n.hash(f.place, maxPlugin); err != nil {
			return err
		} else if have != hash {
			missing = append(missing, f)
		}
		if !before.has(f.place, hash) {
			before.Files[f.key()] = append(before.Files[f.key()], hash)
		}
	}
	if len(missing) == 0 && n.record.equal(after) {
		return nil
	}
	if err := errors.Join(n.removeTemporary(before), n.writeRecord(before)); err != nil {
		return err
	}
	for _, f := range missing { // plugins come first
		if err := n.write(f.place, f.data, f.mode); err != nil {
			return err
		}
	}
	old := record{Files: map[string][]string{}}
	for key, hashes := range n.record.Files {
		if after.Files[key] == nil {
			old.Files[key] = hashes
		}
	}
	if _, err := n.removeFiles(old); err != nil {
		return err
	}
	return n.writeRecord(after)
}

// Remove takes away what was installed, the configuration first; what is not as it was written stays, and is noted. With an owner it does
// so only for the one who has installed last. What is not there is no error.
func Remove(d Dirs, owner string) (notes []string, err error) {
	n, err := open(d)
	if err != nil {
		return nil, err
	}
	defer n.close()
	if len(n.record.Files) == 0 {
		return []string{"nothing is installed"}, n.removeRecord()
	}
	if owner != "" && owner != n.record.Owner {
		return []string{"another has installed since: everything stays"}, nil
	}
	if err := n.removeTemporary(n.record); err != nil {
		return nil, err
	}
	notes, err = n.removeFiles(n.record)
	return notes, errors.Join(err, n.removeRecord())
}

// Check reports whether what was installed is there; with an owner, what that one has installed.
func Check(d Dirs, owner string) error {
	n, err := open(d)
	if err != nil {
		return err
	}
	defer n.close()
	if n.record.Files == nil {
		return errors.New("nothing is installed")
	}
	if owner != "" && owner != n.record.Owner {
		return errors.New("what is there is another's installation")
	}
	for key, hashes := range n.record.Files {
		at := placeOf(key)
		have, err := n.hash(at, maxPlugin)
		switch {
		case err != nil:
			return err
		case len(hashes) != 1:
			return errors.New("an installation has not ended")
		case have != hashes[0]:
			return fmt.Errorf("%s is not as it was installed", at.name)
		}
	}
	return nil
}

// firstConfig is the file that runtimes take, empty where there is none.
func (n *node) firstConfig() (string, error) {
	names, err := n.names(confDir)
	if err != nil {
		return "", err
	}
	slices.Sort(names)
	i := slices.IndexFunc(names, func(name string) bool { return slices.Contains(confExts, filepath.Ext(name)) })
	if i < 0 {
		return "", nil
	}
	return names[i], nil
}
