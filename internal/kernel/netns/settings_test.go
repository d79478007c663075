package netns

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
