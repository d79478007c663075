package cni

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A failing ADD leaves nothing, be it the node's first or not.
func TestAddFails(t *testing.T) {
	inPod := func(args ...string) func(*world) {
		return func(w *world) { w.run("ip", append([]string{"-n", w.name("p1")}, args...)...) }
	}
	for _, tt := range []struct {
		name  string
		mode  netMode
		spoil func(*world)
		call  call
		code  uint
		want  string
		again bool   // what is broken only a second ADD finds
		under string // a shell command that breaks something in a mount namespace of the plugin's own
	}{
		{name: "no namespace", mode: modeBridge, call: call{env: map[string]string{"CNI_NETNS": "/run/netns/none"}}, code: 8,
			want: "no such file"},
		{name: "no namespace file", mode: modeBridge, call: call{env: map[string]string{"CNI_NETNS": "/etc/hostname"}}, code: 8,
			want: "/etc/hostname"},
		{name: "pod interface there", mode: modeBridge, spoil: inPod("link", "add", "eth0", "type", "bridge"), code: 100, want: "there already"},
		{name: "host interface there", mode: modeTransparent, spoil: func(w *world) {
			w.run("ip", "-n", w.name("node"), "link", "add", hostIfName(modeTransparent, "default.p1"), "type", "bridge")
		}, code: 100, want: "there already"},
		// The pod's default route is there by another interface: the last step fails.
		{name: "pod route", mode: modeBridge, spoil: otherDefault, code: 999, want: "add route 0.0.0.0/0 to the pod: file exists"},
		{name: "pod route", mode: modeTransparent, spoil: otherDefault, code: 999, want: "add route 0.0.0.0/0 to the pod: file exists"},
		{name: "read-only sysctls", mode: modeTransparent, under: "mount -o bind,ro /proc/sys /proc/sys", code: 999,
			want: "read-only file system"},
		{name: "read-only sysctls", mode: modeBridge, again: true, under: "mount -o bind,ro /proc/sys /proc/sys", code: 999,
			want: "read-only file system",
			spoil: func(w *world) {
				w.in("node", "sysctl", "-qw", "net.ipv4.ip_forward=0")
				w.run("ip", "-n", w.name("node"), "link", "set", "eth0", "nomaster")
			}},
		{name: "ebtables fails", mode: modeBridge, under: "mount --bind /bin/false /usr/sbin/xtables-nft-multi", code: 999, want: "ebtables"},
		{name: "no master", mode: modeTransparent, call: call{conf: map[string]any{"master": "eth7"}}, code: 51, want: "no interface eth7"},
		{name: "arguments", mode: modeBridge, call: call{env: map[string]string{"CNI_ARGS": "X=1"}}, code: 4, want: "CNI_ARGS"},
		{name: "interface is no bridge", mode: modeBridge, call: call{conf: map[string]any{"bridge": "lo"}}, code: 7, want: "name another one"},
	} {
		for _, first := range []bool{true, false} {
			if first && tt.again {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s/first=%v", tt.mode, tt.name, first), func(t *testing.T) {
				w := newWorld(t, tt.mode)
				w.in("node", "sysctl", "-qw", "net.ipv4.ip_forward=1")
				if !first {
					w.add("p0")
				}
				w.pod("p1")
				if tt.spoil != nil {
					tt.spoil(w)
				}
				before := w.dump()
				c := tt.call
				c.command, c.pod = "ADD", "p1"
				e := w.callUnder(c, tt.under)
				if e == nil {
					t.Fatal("ADD succeeded")
				}
				if e.Code != tt.code || !strings.Contains(e.Msg, tt.want) {
					t.Errorf("error %+v, want code %d and %q", *e, tt.code, tt.want)
				}
				if diff := cmp.Diff(before, w.dump()); diff != "" {
					t.Error(diff)
				}
			})
		}
	}
}

func otherDefault(w *world) {
	w.run("ip", "-n", w.name("p1"), "link", "add", "net1", "type", "bridge")
	w.run("ip", "-n", w.name("p1"), "addr", "add", "10.50.0.2/24", "dev", "net1")
	w.run("ip", "-n", w.name("p1"), "link", "set", "net1", "up")
	w.run("ip", "-n", w.name("p1"), "route", "add", "default", "via", "10.50.0.1")
}

// callUnder runs the plugin after a shell command, in a mount namespace of their own.
func (w *world) callUnder(c call, shell string) *cniErr {
	w.t.Helper()
	if shell == "" {
		return w.call(c).err
	}
	cmd := w.command(c)
	cmd.Args = []string{"unshare", "-m", "sh", "-c", shell + " && exec " + cmd.Path}
	cmd.Path, _ = exec.LookPath("unshare")
	cmd.Env = append(cmd.Env, "PATH="+os.Getenv("PATH"))
	var out []byte
	var err error
	w.inNode(func() { out, err = cmd.Output() })
	if err == nil {
		return nil
	}
	e := &cniErr{}
	if err := json.Unmarshal(out, e); err != nil {
		w.t.Fatalf("no error object: %s", out)
	}
	return e
}

// An ADD killed anywhere, the first one included, leaves what the next ADD of the same container puts right.
func TestKilled(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		killed := 0
		for i := range 40 {
			pod := "p1"
			if i == 0 {
				w.pod(pod)
			}
			cmd := w.command(call{command: "ADD", pod: pod})
			var err error
			w.inNode(func() {
				if err = cmd.Start(); err != nil {
					return
				}
				// The plugin takes some milliseconds: the moments are spread over them.
				time.Sleep(time.Duration(rand.IntN(16000)) * time.Microsecond)
				_ = cmd.Process.Kill()
				err = cmd.Wait()
			})
			if err == nil { // it was faster
				w.must(call{command: "DEL", pod: pod})
			} else {
				killed++
				if i%3 == 0 { // the runtime gives the container up
					w.must(call{command: "DEL", pod: pod})
				}
				ip := ""
				if out := w.call(call{command: "ADD", pod: pod}); out.err == nil {
					ip = w.parse(out)
					if e := w.check(pod, out.data); e != nil {
						t.Fatalf("CHECK: %+v", *e)
					}
				} else if out.err.Code == codeExists && strings.Contains(out.err.Msg, "since an earlier ADD") {
					// killed after all was done
				} else {
					t.Fatalf("ADD after a kill: %+v", *out.err)
				}
				if ip != "" {
					w.ping("fabric", ip, w.hops(64))
				}
				w.must(call{command: "DEL", pod: pod})
			}
			if i%8 == 7 { // a fresh node, to kill its first ADD too
				w.kill("node")
				w.boot()
				_ = os.RemoveAll(w.state)
			}
		}
		if killed == 0 {
			t.Error("no ADD was killed")
		}
		w.add("p1")
		w.must(call{command: "DEL", pod: "p1"})
		if got := w.dump(); strings.Contains(got, "azv") || strings.Contains(got, ": veth") || strings.Count(got, "-A PREROUTING") > 2 {
			t.Errorf("left over: %s", got)
		}
		w.ping("node", "10.13.1.4", 64)
	})
}

// After a reboot the state is there and nothing of what it tells of: addresses are neither leaked nor given out twice.
func TestReboot(t *testing.T) {
	allModes(t, func(t *testing.T, w *world) {
		for _, p := range []string{"p1", "p2", "p3"} {
			w.add(p)
		}
		w.kill("node")
		w.boot()
		w.must(call{command: "DEL", pod: "p1"}) // the runtime cleans up what it remembers
		if got := w.call(call{command: "STATUS"}); got.err != nil {
			t.Errorf("STATUS: %+v", *got.err)
		}
		w.pod("p4")
		result := w.must(call{command: "ADD", pod: "p4"})
		if ip := w.parse(output{data: result}); ip != w.firstIP() {
			t.Errorf("the first address after the reboot is %s", ip)
		}
		w.must(call{command: "DEL", pod: "p2"}) // late
		if e := w.check("p4", result); e != nil {
			t.Errorf("CHECK: %+v", *e)
		}
		w.ping("p4", "10.13.1.4", w.hops(64))
	})
}

// A state that is lost or damaged while pods run is rebuilt from the kernel.
func TestStateLost(t *testing.T) {
	for _, how := range []string{"lost", "damaged"} {
		t.Run(how, func(t *testing.T) {
			allModes(t, func(t *testing.T, w *world) {
				for _, p := range []string{"p0", "p1", "p2"} {
					w.pod(p)
				}
				w.add("p1")
				w.must(call{command: "DEL", pod: "p1"})
				before := w.dump()
				ips := []string{w.add("p1"), w.add("p2")}
				path := filepath.Join(w.state, "azure.json")
				if how == "lost" {
					if err := os.Remove(path); err != nil {
						t.Fatal(err)
					}
				} else if err := os.WriteFile(path, []byte(`{"version":1,"att`), 0o600); err != nil {
					t.Fatal(err)
				}
				if ip := w.add("p0"); slices.Contains(ips, ip) {
					t.Errorf("%s was given out twice", ip)
				}
				for _, p := range []string{"p0", "p1", "p2"} {
					w.must(call{command: "DEL", pod: p})
				}
				if diff := cmp.Diff(before, w.dump()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}
