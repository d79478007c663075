package preflight

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/testing/kerneltest"
)

// TestFeatures: every feature of the table works on a machine that runs labs, tried by itself and with the others.
func TestFeatures(t *testing.T) {
	kerneltest.NeedRoot(t)
	rows, err := Check(t.Context(), allNeeds...)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) != len(features) {
		t.Errorf("%d rows of %d features: some have needs that are not listed", len(rows), len(features))
	}
	for _, r := range rows {
		if r.Result != Works {
			t.Error(r)
		}
	}
	for _, f := range features {
		t.Run(f.name, func(t *testing.T) {
			for name, err := range tryAll(t.Context(), []feature{f}) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestWithoutTemporaryDirectory: trials that mount do so also where $TMPDIR is missing, which is not the kernel's fault.
func TestWithoutTemporaryDirectory(t *testing.T) {
	kerneltest.NeedRoot(t)
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	if failed := tryAll(t.Context(), features); len(failed) > 0 {
		t.Errorf("failed: %v", failed)
	}
}

// TestTriesUse: a trial asks the kernel for the feature. What no kernel has fails, and the features tried in the same run do not.
func TestTriesUse(t *testing.T) {
	kerneltest.NeedRoot(t)
	for _, bad := range []feature{
		nft("nonsense", everyLab, nil, "ip", chain(atForward, "meta nonsense 7")),
		xt("nonsense", everyLab, nil, "filter", "FORWARD -m nonsense -j ACCEPT"),
		{name: "ipset nonsense", with: []string{"ipset", "restore"}, input: "create check2 hash:nonsense\n"},
	} {
		t.Run(bad.name, func(t *testing.T) {
			failed := tryAll(t.Context(), append(slices.Clone(features), bad))
			if len(failed) != 1 || failed[bad.name] == nil || !strings.Contains(failed[bad.name].Error(), "nonsense") {
				t.Errorf("failed: %v", failed)
			}
		})
	}
}

// fake is a machine on which features fail until all their modules are loaded.
type fake struct {
	*machine
	absent   []string // programs
	loadable map[string]error
	loaded   []string
}

func newFake(t *testing.T, files map[string]string) *fake {
	t.Helper()
	f := &fake{loadable: map[string]error{}}
	f.machine = &machine{features: features, root: t.TempDir(), release: "6.12.0"}
	for path, text := range files {
		path = f.path(path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	f.find = func(name string) (string, error) {
		if slices.Contains(f.absent, name) {
			return "", exec.ErrNotFound
		}
		return "/usr/sbin/" + name, nil
	}
	f.modprobe = func(_ context.Context, module string) error {
		err, known := f.loadable[module]
		if !known {
			err = errors.New("modprobe: FATAL: Module " + module + " not found in directory /lib/modules/6.12.0")
		}
		if err == nil {
			f.loaded = append(f.loaded, module)
		}
		return err
	}
	f.tryAll = func(_ context.Context, features []feature) map[string]error {
		failed := map[string]error{}
		for _, feature := range features {
			for _, m := range feature.modules {
				if _, module := f.loadable[m]; module && !slices.Contains(f.loaded, m) {
					failed[feature.name] = errors.New("no such file or directory")
				}
			}
		}
		return failed
	}
	return f
}

func row(t *testing.T, rows []Row, feature string) Row {
	t.Helper()
	i := slices.IndexFunc(rows, func(r Row) bool { return r.Feature == feature })
	if i < 0 {
		t.Fatalf("no row of %s", feature)
	}
	return rows[i]
}

const bridgeSetting = "proc/sys/net/bridge/bridge-nf-call-iptables"

// TestLoadsModules: the modules of features that do not work are loaded, and no others; bridges of the machine stay as they were.
func TestLoadsModules(t *testing.T) {
	f := newFake(t, map[string]string{"proc/modules": "", bridgeSetting: "1\n"})
	f.loadable["br_netfilter"], f.loadable["overlay"] = nil, nil
	rows := f.check(t.Context(), []Need{PodBridge})
	if got := row(t, rows, "br_netfilter"); got.Result != Works || !slices.Equal(got.Loaded, []string{"br_netfilter"}) {
		t.Errorf("%+v", got)
	}
	if !slices.Equal(f.loaded, []string{"br_netfilter"}) {
		t.Errorf("loaded %v", f.loaded)
	}
	if got := f.read(bridgeSetting); got != "0" {
		t.Errorf("%s is %q", bridgeSetting, got)
	}
}

// TestBuiltIn: where everything works, no module is loaded.
func TestBuiltIn(t *testing.T) {
	f := newFake(t, map[string]string{"proc/modules": "", bridgeSetting: "1\n"})
	for _, r := range f.check(t.Context(), allNeeds) {
		if r.Result != Works || r.Loaded != nil {
			t.Errorf("%+v", r)
		}
	}
	if f.loaded != nil || f.read(bridgeSetting) != "1" {
		t.Errorf("loaded %v", f.loaded)
	}
}

// TestCannotLoad: the row of a feature says which module could not be loaded, and where it comes from.
func TestCannotLoad(t *testing.T) {
	const (
		modules = "proc/modules"
		dep     = "lib/modules/6.12.0/modules.dep"
		release = "etc/os-release"
	)
	notFound := errors.New("modprobe: FATAL: Module br_netfilter not found")
	for _, c := range []struct {
		name   string
		files  map[string]string
		absent []string
		err    error
		want   string
	}{
		{"kernel without modules", nil, nil, notFound, "this kernel loads no modules; use one that has br_netfilter built in"},
		{"modules disabled", map[string]string{modules: "", "proc/sys/kernel/modules_disabled": "1\n"}, nil, notFound, "add br_netfilter to /etc/modules-load.d and reboot"},
		{"no kmod", map[string]string{modules: ""}, []string{"modprobe"}, notFound, "cannot load module br_netfilter: modprobe not found; apt-get install kmod"},
		{"no directory", map[string]string{modules: ""}, nil, notFound, `/lib/modules/6.12.0 does not exist: after an update of the kernel reboot; in a container run "modprobe br_netfilter" on its host`},
		{"Debian", map[string]string{modules: "", dep: "kernel/net/bridge/bridge.ko.xz:\n", release: "NAME=x\nID=debian\n"}, nil, notFound, "apt-get install linux-image-6.12.0"},
		{"Ubuntu", map[string]string{modules: "", dep: "", release: "ID=\"ubuntu\"\n"}, nil, notFound, "apt-get install linux-modules-extra-6.12.0"},
		{"another", map[string]string{modules: "", dep: "", release: "ID=fedora\n"}, nil, notFound, "install the package with the modules of kernel 6.12.0"},
		{"refused", map[string]string{modules: "", dep: "kernel/net/bridge/br_netfilter.ko.xz: kernel/net/bridge/bridge.ko.xz\n"}, nil, errors.New("modprobe: ERROR: could not insert 'br_netfilter': Key was rejected by service"),
			"Key was rejected by service; its file exists, so that the kernel or its security policy refused it"},
		{"loaded", map[string]string{modules: ""}, nil, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, c.files)
			f.absent, f.loadable["br_netfilter"] = c.absent, c.err
			got := row(t, f.check(t.Context(), []Need{PodBridge}), "br_netfilter")
			if c.want == "" {
				if got.Result != Works {
					t.Errorf("%+v", got)
				}
				return
			}
			if got.Result != Missing || got.Cause != "no such file or directory" || !strings.HasSuffix(got.Remedy, c.want) {
				t.Errorf("%+v\nwant %q", got, c.want)
			}
			line := got.String()
			for _, part := range []string{"br_netfilter: missing: no such file", "needed for pods on a bridge", c.want} {
				if !strings.Contains(line, part) {
					t.Errorf("%q has no %q", line, part)
				}
			}
		})
	}
}

// TestMissingPrograms: each program that is missing has a row with its package; what is tried with it is not called missing.
func TestMissingPrograms(t *testing.T) {
	f := newFake(t, nil)
	f.absent = []string{"nft", "ipset"}
	rows := f.check(t.Context(), []Need{Lab, Calico})
	if got := row(t, rows, "nft"); got.Result != Missing || got.Remedy != "apt-get install nftables" {
		t.Errorf("%+v", got)
	}
	if got := row(t, rows, "nft nat"); got.Result != NotTried || got.Cause != "program nft not found" {
		t.Errorf("%+v", got)
	}
	if got := row(t, rows, "ipset hash:net"); got.Result != NotTried {
		t.Errorf("%+v", got)
	}
	if got := row(t, rows, "iptables comment"); got.Result != Works {
		t.Errorf("%+v", got)
	}
}

// TestNoNamespace: where no network namespace can be made, one row says so.
func TestNoNamespace(t *testing.T) {
	f := newFake(t, map[string]string{"proc/modules": ""})
	f.tryAll = func(_ context.Context, features []feature) map[string]error {
		failed := map[string]error{}
		for _, feature := range features {
			failed[feature.name] = errNoNamespace
		}
		return failed
	}
	for _, r := range f.check(t.Context(), []Need{Lab, PodBridge}) {
		if missing := r.Result == Missing; missing != (r.Feature == namespaces) {
			t.Errorf("%+v", r)
		}
	}
	if f.loaded != nil {
		t.Errorf("loaded %v", f.loaded)
	}
}

// TestWSL2: on a kernel without the bridge family of nftables, ebtables and some expressions (as WSL2's 6.18), worlds that do not use a
// bridge have all that they need. The others are told what is missing.
func TestWSL2(t *testing.T) {
	off := []string{ // not built, neither in nor as modules
		"nft_meta_bridge", "nft_reject_bridge", "nf_conntrack_bridge", "ebt_arpreply", "ebt_snat", "ebt_dnat", "nft_socket", "nft_synproxy",
		"nft_xfrm", "nft_osf", "nf_flow_table", "nfnetlink_hook",
	}
	f := newFake(t, map[string]string{"proc/modules": "", "lib/modules/6.12.0/modules.dep": ""})
	for _, module := range off {
		f.loadable[module] = errors.New("modprobe: FATAL: Module " + module + " not found")
	}
	for _, r := range f.check(t.Context(), []Need{Lab, IPTablesProxy, NFTablesProxy, Calico, Limits, DiskLimit, LiveWalk}) {
		if r.Result != Works {
			t.Error(r)
		}
	}
	var missing []string
	for _, r := range f.check(t.Context(), []Need{PodBridge}) {
		if r.Result != Works {
			missing = append(missing, r.Feature)
		}
	}
	if want := []string{"nft family bridge", "ebtables arpreply, snat, dnat"}; !slices.Equal(missing, want) {
		t.Errorf("missing %q, want %q", missing, want)
	}
}
