package preflight

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"packetwalk.dev/internal/base/program"
)

// Only features that do not work have their modules loaded: the kernel itself loads most modules when they are used, and what is built in
// works. Of those that packetwalk needs, the kernel loads all but br_netfilter on demand.

func modprobe(ctx context.Context, module string) error {
	_, err := program.Command{Path: "modprobe", Args: []string{"--", module}}.Output(ctx)
	return err
}

// load is the result of loading the modules of a feature.
type load struct {
	loaded []string
	remedy string // what the user can do if the feature still does not work
}

// loadModules loads the modules of the features that failed.
func (m *machine) loadModules(ctx context.Context, features []feature, failed map[string]error) map[string]load {
	loads := map[string]load{}
	results := map[string]error{} // of each module
	for _, f := range features {
		if failed[f.name] == nil || len(f.modules) == 0 || errors.Is(failed[f.name], errNoNamespace) {
			continue
		}
		all := strings.Join(f.modules, ", ")
		if err := m.blocked(all); err != nil {
			loads[f.name] = load{remedy: oneLine(err)}
			continue
		}
		var l load
		for _, module := range f.modules {
			err, done := results[module]
			if !done {
				err = m.load(ctx, module)
				results[module] = err
			}
			if err == nil {
				l.loaded = append(l.loaded, module)
			} else if l.remedy == "" {
				l.remedy = oneLine(err)
			}
		}
		if l.remedy == "" {
			l.remedy = "use another kernel: with the modules " + all + " loaded, this one still lacks it"
		}
		loads[f.name] = l
	}
	return loads
}

// blocked returns why no module can be loaded, and what the user can do about it.
func (m *machine) blocked(modules string) error {
	switch _, err := os.Stat(m.path("proc/modules")); {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("this kernel loads no modules; use one that has %s built in", modules)
	case m.read("proc/sys/kernel/modules_disabled") == "1":
		return fmt.Errorf("this kernel loads no more modules (kernel.modules_disabled is 1); add %s to /etc/modules-load.d and reboot", modules)
	}
	if _, err := m.find("modprobe"); err != nil {
		return fmt.Errorf("cannot load module %s: modprobe not found; %s", modules, install("modprobe"))
	}
	return nil
}

// load loads one module. Its error ends with what the user can do.
func (m *machine) load(ctx context.Context, module string) error {
	err := m.modprobe(ctx, module)
	if err == nil {
		m.keepBridges(module)
		return nil
	}
	return fmt.Errorf("cannot load module %s: %s; %s", module, oneLine(err), m.packageOf(module))
}

// keepBridges turns br_netfilter off for the bridges of the machine's own network namespace, which were not filtered before it was loaded.
// Every namespace has its own settings, and the nodes of a lab turn theirs on.
func (m *machine) keepBridges(module string) {
	if module != "br_netfilter" {
		return
	}
	for _, family := range []string{"arp", "ip", "ip6"} {
		_ = os.WriteFile(m.path("proc/sys/net/bridge/bridge-nf-call-"+family+"tables"), []byte("0\n"), 0)
	}
}

// packageOf says where a module comes from that modprobe could not load.
func (m *machine) packageOf(module string) string {
	dir := m.modulesDir()
	if _, err := os.Stat(m.path(dir)); err != nil {
		return fmt.Sprintf("/%s does not exist: after an update of the kernel reboot; in a container run \"modprobe %s\" on its host", dir, module)
	}
	if m.hasFile(module) {
		return "its file exists, so that the kernel or its security policy refused it"
	}
	switch m.distribution() {
	case "ubuntu":
		return "apt-get install linux-modules-extra-" + m.release
	case "debian":
		return "apt-get install linux-image-" + m.release
	}
	return "install the package with the modules of kernel " + m.release
}

// hasFile reports whether modules.dep lists the module's file.
func (m *machine) hasFile(module string) bool {
	for line := range strings.Lines(m.read(m.modulesDir() + "/modules.dep")) {
		path, _, _ := strings.Cut(line, ":")
		name, _, _ := strings.Cut(filepath.Base(path), ".ko")
		if strings.ReplaceAll(name, "-", "_") == strings.ReplaceAll(module, "-", "_") {
			return true
		}
	}
	return false
}

// distribution returns ID of os-release(5).
func (m *machine) distribution() string {
	lines := bufio.NewScanner(strings.NewReader(m.read("etc/os-release")))
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "ID="); ok {
			return strings.Trim(id, `"'`)
		}
	}
	return ""
}

func (m *machine) modulesDir() string { return "lib/modules/" + m.release }

func (m *machine) path(name string) string { return filepath.Join(m.root, name) }

// read returns the trimmed content of a file, "" where it cannot be read.
func (m *machine) read(name string) string {
	text, _ := os.ReadFile(m.path(name))
	return strings.TrimSpace(string(text))
}
