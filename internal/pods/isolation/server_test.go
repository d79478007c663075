package isolation

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/testing/kerneltest"
)

// probe prints what a server has and may do.
func probe(args []string) {
	var data [2]unix.CapUserData
	_ = unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	private, _ := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	groups, _ := os.Getgroups()
	host, _ := os.Hostname()
	fmt.Println("args", args, "env", os.Environ(), "host", host)
	fmt.Println("uid", os.Getuid(), "gid", os.Getgid(), "groups", groups, "pid", os.Getpid(), "nnp", private)
	fmt.Println("caps", data[0].Effective, data[1].Effective)
	var all []string
	_ = filepath.WalkDir("/", func(path string, _ os.DirEntry, _ error) error { all = append(all, path); return nil })
	fmt.Println("files", strings.Join(all, " "))
	for _, path := range []string{"/x", "/etc/x", "/etc/resolv.conf", "/data/x", "/secret", "/probe", "/state/x"} {
		err := os.WriteFile(path, []byte("written"), 0o644)
		fmt.Println("write", path, err == nil)
	}
	l, err := net.Listen("tcp", "127.0.0.1:80")
	fmt.Println("listen", err)
	if err == nil {
		l.Close()
	}
	for what, err := range map[string]error{
		"mount": unix.Mount("tmpfs", "/data", "tmpfs", 0, ""), "chroot": unix.Chroot("/data"), "setuid": unix.Setuid(0),
		"kill": unix.Kill(-1, unix.SIGKILL), "execute": exec.Command("/data/tool").Run(),
	} {
		fmt.Println(what, err == nil)
	}
}

// TestServer: a program runs as the user nobody with one capability, sees the files that it was given, and can change only
// the writable ones.
func TestServer(t *testing.T) {
	kerneltest.NeedRoot(t)
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"data", "state", "spec"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	tool, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"secret": "s", "data/tool": string(tool)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(filepath.Join(dir, "state"), Nobody, Nobody); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	s := Server{Hostname: "server-a", Program: self, Args: []string{"probe", "a b"}, Env: []string{"X=1"},
		Files: map[string]string{"/etc/resolv.conf": "nameserver 192.0.2.1\n", "/usr/share/x/index.html": "hello"},
		Mounts: []Mount{{Source: in("data"), Destination: "/data"}, {Source: in("secret"), Destination: "/secret"},
			{Source: in("state"), Destination: "/state", Writable: true}}}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "spec", "spec.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, ServerArgs(file)...)
	var out strings.Builder
	c.Stdout, c.Stderr, c.SysProcAttr = &out, &out, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := Start(c, (*exec.Cmd).Start); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	for _, want := range []string{
		"args [a b] env [X=1] host server-a", "uid 65534 gid 65534 groups [] pid 1 nnp 1", "caps 1024 0",
		"files / /data /data/tool /etc /etc/resolv.conf /probe /secret /state /usr /usr/share /usr/share/x /usr/share/x/index.html\n",
		"write /x false", "write /etc/x false", "write /etc/resolv.conf false", "write /data/x false", "write /secret false", "write /probe false", "write /state/x true",
		"mount false", "chroot false", "setuid false", "execute false",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(out.String(), "listen listen tcp") && strings.Contains(out.String(), "permission") {
		t.Error("it cannot listen on port 80")
	}
	if c.ProcessState.ExitCode() != 7 {
		t.Errorf("status %d", c.ProcessState.ExitCode())
	}
	if t.Failed() {
		t.Logf("\n%s", &out)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
}

// TestServerFails: what cannot be run is said, and nothing is run.
func TestServerFails(t *testing.T) {
	kerneltest.NeedRoot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"{": "unexpected end", `{"program":"/nowhere/x","args":["x"]}`: "/nowhere/x: no such file", `{}`: "no program's name",
		`{"program":"` + self + `","args":["probe"],"files":{"/../x":"y"}}`:                               "path escapes",
		`{"program":"` + self + `","args":["probe"],"mounts":[{"source":"/nowhere","destination":"/x"}]}`: "/nowhere",
	} {
		file := filepath.Join(t.TempDir(), "spec.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := exec.Command(self, ServerArgs(file)...)
		var out strings.Builder
		c.Stdout, c.Stderr, c.SysProcAttr = &out, &out, &syscall.SysProcAttr{}
		if err := Start(c, (*exec.Cmd).Start); err != nil {
			t.Fatal(err)
		}
		if _ = c.Wait(); c.ProcessState.ExitCode() != 125 || !strings.Contains(out.String(), want) {
			t.Errorf("%s: status %d:\n%s", text, c.ProcessState.ExitCode(), &out)
		}
	}
}
