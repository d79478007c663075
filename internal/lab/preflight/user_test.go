package preflight

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestWithoutRoot: what fails in a user namespace is missing only where root would fail, too. No module is loaded.
func TestWithoutRoot(t *testing.T) {
	files := map[string]string{
		"proc/modules": "", "etc/os-release": "ID=debian\n",
		"lib/modules/6.12.0/modules.dep": "kernel/net/bridge/br_netfilter.ko.xz: kernel/net/bridge/bridge.ko.xz\n",
	}
	for _, c := range []struct {
		name, feature string
		failed        error
		result        Result
		remedy        string
	}{
		{"works", "veth", nil, Works, ""},
		{"only root", "cgroup limits", nil, NeedsRoot, tryAsRoot},
		{"refused", "overlay", errors.New("mount overlay: operation not permitted"), NeedsRoot, tryAsRoot},
		{"not loaded", "br_netfilter", errors.New("no such file"), NeedsRoot, tryAsRoot + ", which loads br_netfilter"},
		{"no module", "bridge", errors.New("operation not supported"), Missing, "apt-get install linux-image-6.12.0"},
		{"a setting", "policy routing", errors.New("operation not supported"), Missing, "use a kernel with CONFIG_IP_MULTIPLE_TABLES"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t, files)
			f.user = true
			f.tryAll = func(_ context.Context, features []feature) map[string]error {
				if slices.ContainsFunc(features, func(f feature) bool { return f.root }) {
					t.Error("tries what only root can")
				}
				if c.failed == nil {
					return nil
				}
				return map[string]error{c.feature: c.failed}
			}
			got := row(t, f.check(t.Context(), allNeeds), c.feature)
			if got.Result != c.result || got.Remedy != c.remedy || f.loaded != nil {
				t.Errorf("%+v, loaded %v", got, f.loaded)
			}
		})
	}
}

// TestNoUserNamespace: where no user namespace can be made, programs are found, and the rest needs root.
func TestNoUserNamespace(t *testing.T) {
	f := newFake(t, nil)
	f.absent = []string{"ipset"}
	rows := f.untried(errors.New("unshare: unshare failed"))
	for feature, want := range map[string]Result{
		"nft": Works, "ipset": Missing, "veth": NeedsRoot, "nft nat": NeedsRoot, "cgroup limits": NeedsRoot,
	} {
		if got := row(t, rows, feature); got.Result != want {
			t.Errorf("%+v", got)
		}
	}
	if got := row(t, rows, "veth"); !strings.Contains(got.Cause, "unshare failed") {
		t.Errorf("%+v", got)
	}
}
