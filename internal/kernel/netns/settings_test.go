package netns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestResetSettings: a namespace whose settings differ has the kernel's own again. make test-vm creates namespaces on a machine with other
// settings.
func TestResetSettings(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Remove() })
	read := func() string {
		var text strings.Builder
		err := ns.Do(func() error {
			files, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/[a-s]*")
			for _, file := range files {
				value, _ := os.ReadFile(file) // some are write-only
				text.WriteString(file + " " + string(value))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return text.String()
	}
	want := read()
	other := map[string]string{"0": "1", "1": "0"}
	for _, d := range sysctl.Defaults {
		for _, link := range []string{"all", "default", "lo"} {
			if err := ns.SetSysctls(Sysctl{Key: "net/ipv4/conf/" + link + "/" + d.Name, Value: other[d.Value]}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if read() == want {
		t.Fatal("no setting was changed")
	}
	if err := ns.ResetSettings(); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != want {
		t.Errorf("settings are\n%s\nwant\n%s", got, want)
	}
}

// TestResetSettingsIsWhole: links of a new namespace keep their values when conf/default changes, also those that were the machine's.
func TestResetSettingsIsWhole(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ns.Remove() })
	err = ns.Do(func() error {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
			return err
		}
		if _, err := sysctl.Ensure("net/ipv4/conf/default/arp_ignore", "1"); err != nil {
			return err
		}
		if value, err := sysctl.Read("net/ipv4/conf/a/arp_ignore"); err != nil || value != "0" {
			t.Errorf("arp_ignore of a is %q, %v", value, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
