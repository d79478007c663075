package container_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"packetwalk.dev/internal/pods/container"
)

func TestApplicationAnswersAndLogs(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("whereami"))
	answer := m.run(c, "curl", "-s", "-H", "X-Forwarded-For: 198.51.100.7", "http://127.0.0.1/")
	contains(t, answer, `"hostname": "box"`, `"my_private_ip": "127.0.0.1"`, `"your_address": "127.0.0.1"`,
		`"x-forwarded-for": "198.51.100.7"`, `"host": "127.0.0.1"`)
	contains(t, m.run(c, "curl", "-s", "-g", "http://[::1]/"), `"your_address": "::1"`)
	contains(t, m.log(c), `127.0.0.1 - - [`, `"GET / HTTP/1.1" 200`, `"curl/`)
	if err := c.Stop(context.Background(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := c.Exit(); e.Code != 0 || e.Reason != container.ReasonCompleted || e.FinishedAt.Before(e.StartedAt) || e.StartedAt.IsZero() {
		t.Errorf("exit %+v", e)
	}
}

func TestExitStatus(t *testing.T) {
	m := newMachine(t)
	for _, tt := range []struct {
		script string
		code   int
		signal int
		reason string
		log    string
	}{
		{"echo out; echo err >&2", 0, 0, container.ReasonCompleted, "out\nerr\n"},
		{"exit 3", 3, 0, container.ReasonError, ""},
		{"exec 2>&-; kill -9 $$; sh -c 'kill -9 $$'", 137, 0, container.ReasonError, ""}, // a first process cannot end itself so
		{"printf 'no end of line'", 0, 0, container.ReasonCompleted, "no end of line"},
		{"sleep 1000 & echo left; exit 0", 0, 0, container.ReasonCompleted, "left\n"},
	} {
		c := m.start(m.spec("ubuntu", "sh", "-c", tt.script))
		e := m.wait(c)
		if e.Code != tt.code || e.Signal != tt.signal || e.Reason != tt.reason {
			t.Errorf("%s: %+v", tt.script, e)
		}
		// Two streams are two pipes: their order in the log is not the command's.
		got, want := m.log(c), tt.log
		if len(got) != len(want) || strings.Contains(want, "out") != strings.Contains(got, "out") || !strings.Contains(want, "out") &&
			got != want {
			t.Errorf("%s: log %q, want %q", tt.script, got, want)
		}
	}
}

func TestShellWithoutInputEndsAtOnce(t *testing.T) {
	m := newMachine(t)
	if e := m.wait(m.start(m.spec("ubuntu"))); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
}

func TestStartFailures(t *testing.T) {
	m := newMachine(t)
	workdir := m.spec("ubuntu", "true")
	workdir.WorkingDir = "/etc/passwd"
	source := m.spec("ubuntu", "true")
	source.Mounts = []container.Mount{{Source: "/nosuch/volume", Destination: "/v"}}
	image := m.spec("ubuntu", "true")
	image.Layers = []string{"/nosuch/layer"}
	netns := m.spec("ubuntu", "true")
	netns.NetNS = "/nosuch/netns"
	for _, tt := range []struct {
		spec    container.Spec
		message string
		start   bool
	}{
		{m.spec("ubuntu", "nosuch-command"), `exec: "nosuch-command": executable file not found in $PATH`, true},
		{m.spec("ubuntu", "/etc/hostname"), `permission denied`, true},
		{m.spec("ubuntu", "/nosuch/command"), `no such file or directory`, true},
		{workdir, `/etc/passwd: not a directory`, true},
		{source, `/nosuch/volume`, false},
		{netns, `/nosuch/netns`, false},
		{image, `/nosuch`, false},
	} {
		c, err := m.runtime.Start(context.Background(), tt.spec)
		if err == nil {
			c.Remove()
			t.Errorf("started %v", tt.spec.Command)
			continue
		}
		contains(t, err.Error(), tt.message)
		if errors.Is(err, container.ErrStart) != tt.start {
			t.Errorf("%v: ErrStart is %v, want %v", err, !tt.start, tt.start)
		}
		if _, err := os.Stat(tt.spec.Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", tt.spec.Dir, err)
		}
		if _, err := m.runtime.Adopt(tt.spec.Dir); !errors.Is(err, container.ErrNoContainer) {
			t.Errorf("adopt: %v", err)
		}
	}
}

const starterEnv = "PACKETWALK_TEST_STARTER"

// starter is a process that starts a container and does not end by itself: the lab process, to be killed.
func starter() int {
	binary, text, _ := strings.Cut(os.Getenv(starterEnv), ",")
	var s container.Spec
	err := json.Unmarshal([]byte(text), &s)
	if err == nil {
		_, err = newRuntime(binary).Start(context.Background(), s)
	}
	fmt.Println("started", err)
	select {}
}

// starterOf is a starter of a container.
func (m *machine) starterOf(s container.Spec) *exec.Cmd {
	m.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		m.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), starterEnv+"="+binary+","+string(text))
	return cmd
}

func TestSurvivesItsStarter(t *testing.T) {
	m := newMachine(t)
	alone, below := m.spec("nginx"), m.spec("nginx")
	below.ProcessesBelow = m.start(m.spec("pause")).Spec().Dir
	for name, s := range map[string]container.Spec{"alone": alone, "below": below} {
		t.Run(name, func(t *testing.T) { m.survives(t, s) })
	}
}

func (m *machine) survives(t *testing.T, s container.Spec) {
	dir, cmd := s.Dir, m.starterOf(s)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 100)
	n, _ := out.Read(line)
	if got := string(line[:n]); got != "started <nil>\n" {
		t.Fatal(got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	c, err := m.runtime.Adopt(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Remove()
	contains(t, m.run(c, "curl", "-si", "http://127.0.0.1/"), "200 OK", "Welcome to nginx!", "Content-Length: 612")
	contains(t, m.log(c), `"GET / HTTP/1.1" 200 612 "-" "curl/`)
	if err := c.Stop(context.Background(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := c.Exit(); e.Code != 0 || e.Reason != container.ReasonCompleted {
		t.Errorf("exit %+v", e)
	}
	again, err := m.runtime.Adopt(dir)
	if err != nil {
		t.Fatal(err)
	}
	if e := m.wait(again); e.Code != 0 {
		t.Errorf("adopted after its end: exit %+v", e)
	}
}

func TestAdoptFindsOutWhatNobodySaw(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("agnhost"))
	adopted, err := m.runtime.Adopt(c.Spec().Dir)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := os.FindProcess(c.Pid()); err != nil || p.Kill() != nil {
		t.Fatal("cannot kill", c.Pid())
	}
	if e := m.wait(c); e.Code != 137 || e.Signal != 9 || e.Reason != container.ReasonError {
		t.Errorf("its starter saw %+v", e)
	}
	if e := m.wait(adopted); e.Code != 137 {
		t.Errorf("the adopter saw %+v", e)
	}
}

func TestStopKillsAfterGrace(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("ubuntu", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"))
	m.awaitLog(c)
	begin := time.Now()
	if err := c.Stop(context.Background(), 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took < 300*time.Millisecond {
		t.Errorf("killed after %v, before the grace period", took)
	}
	if e := c.Exit(); e.Code != 137 || e.Signal != 9 {
		t.Errorf("exit %+v", e)
	}
	if err := c.Stop(context.Background(), time.Second); err != nil {
		t.Errorf("stopping it again: %v", err)
	}
	if _, err := c.Exec(context.Background(), container.Exec{Args: []string{"true"}}); !errors.Is(err, container.ErrNotRunning) {
		t.Errorf("exec after the end: %v", err)
	}
}

func TestSignalReachesCommand(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("ubuntu", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done"))
	m.awaitLog(c)
	if err := c.Stop(context.Background(), 10*time.Second); err != nil {
		t.Fatal(err)
	}
	if e := c.Exit(); e.Code != 5 || m.log(c) != "ready\nbye\n" {
		t.Errorf("exit %+v, log %q", e, m.log(c))
	}
}

func TestFileSystem(t *testing.T) {
	m := newMachine(t)
	host := t.TempDir()
	if err := os.WriteFile(host+"/file", []byte("of the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join("/root", fmt.Sprintf(".packetwalk-test-%d", os.Getpid()))
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(secret) })
	s := m.spec("agnhost")
	s.ResolvConf = []byte("nameserver 10.0.0.10\n")
	s.Mounts = []container.Mount{
		{Source: host, Destination: "/volume/ro", ReadOnly: true},
		{Source: host, Destination: "/volume/rw"},
		{Source: host + "/file", Destination: "/var/run/secrets/file", ReadOnly: true},
		{Source: host, Beneath: []string{"file"}, Destination: "/etc/made.conf", ReadOnly: true},
	}
	c := m.start(s)
	script := `
cat /etc/resolv.conf /etc/hostname /volume/ro/file /run/secrets/file /etc/made.conf
echo x > /volume/ro/new || echo ro is read-only
echo x > /volume/rw/new && echo rw is writable
echo x > /etc/made.conf || echo file is read-only
echo x > /usr/bin/packetwalk-test && echo root is writable
ls -A /root /home
echo 1 > /proc/sys/kernel/sysrq || echo proc is guarded
echo b > /proc/sysrq-trigger || echo sysrq is guarded
mkdir /sys/x || echo sys is read-only
mknod /tmp/sda b 8 0 || echo no devices
ls /sys/class/net
findmnt -rno TARGET 2>/dev/null | sort | head -40 || true
cat /proc/1/mounts | wc -l
`
	out := m.run(c, "sh", "-c", script)
	contains(t, out, "nameserver 10.0.0.10\n", "box\n", "of the host\nof the host\nof the host\n", "ro is read-only", "rw is writable",
		"file is read-only",
		"root is writable", "proc is guarded", "sysrq is guarded", "sys is read-only", "no devices", "\nlo\n")
	if strings.Contains(out, filepath.Base(secret)) {
		t.Error("the host's /root is seen")
	}
	if _, err := os.Stat("/usr/bin/packetwalk-test"); err == nil {
		t.Error("the write went to the host")
	}
	if _, err := os.Stat(host + "/new"); err != nil {
		t.Error(err)
	}
	mounts := m.run(c, "cat", "/proc/self/mountinfo")
	if strings.Contains(mounts, " /dev/pts rw") != true || strings.Contains(mounts, "/sys/fs/cgroup") {
		t.Errorf("mounts:\n%s", mounts)
	}
	t.Logf("\n%s\n%s", out, mounts)
}

func TestReadOnlyRoot(t *testing.T) {
	m := newMachine(t)
	s := m.spec("agnhost")
	s.ReadOnlyRoot = true
	s.Mounts = []container.Mount{{Source: t.TempDir(), Destination: "/usr/share/scratch"}}
	c := m.start(s)
	contains(t, m.run(c, "sh", "-c",
		"for f in / /tmp /usr /etc/ssl/certs; do touch $f/x || echo no; done; touch /usr/share/scratch/x && echo scratch"),
		"no\nno\nno\nno\nscratch\n")
}

// TestWhatAnApplicationExecutes has no more rights than a command in the container: a shell that agnhost starts for a client.
func TestWhatAnApplicationExecutes(t *testing.T) {
	m := newMachine(t)
	s := m.spec("agnhost", "/agnhost", "netexec")
	c := m.start(s)
	ask := func(command string) string {
		return m.run(c, "curl", "-sG", "http://127.0.0.1:8080/shell", "--data-urlencode", "cmd="+command)
	}
	contains(t, ask("grep CapPrm /proc/self/status"), `CapPrm:\t00000000a00435fb`)
	contains(t, ask("unshare --user true 2>&1"), "Operation not permitted")
	contains(t, ask("grep -E 'Seccomp:|NoNewPrivs' /proc/self/status"), `NoNewPrivs:\t1\nSeccomp:\t2`)
	if got := ask("sleep 0.1 & echo hi"); strings.Contains(got, "error") {
		t.Error(got)
	}
	contains(t, ask("exit 3"), `"error": "exit status 3"`)
	contains(t, ask("mount -t tmpfs none /mnt 2>&1"), `"error"`)
}

func TestUserAndCapabilities(t *testing.T) {
	m := newMachine(t)
	id := int64(1000)
	for _, tt := range []struct {
		name string
		set  func(*container.Spec)
		want []string
	}{
		{"default", func(*container.Spec) {}, []string{"0\n0\n", "CapEff:\t00000000a00435fb", "NoNewPrivs:\t0"}},
		{"drop all", func(s *container.Spec) {
			s.DropCaps, s.AddCaps, s.NoNewPrivs = []string{"ALL"}, []string{"cap_net_raw"}, true
		},
			[]string{"0\n0\n", "CapEff:\t0000000000002000", "CapBnd:\t0000000000002000", "NoNewPrivs:\t1"}},
		{"user", func(s *container.Spec) { s.UID, s.GID, s.Groups = &id, &id, []int64{2000} },
			[]string{"1000\n1000 2000\n", "CapEff:\t0000000000000000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t)
			s := m.spec("ubuntu", "sleep", "1000")
			tt.set(&s)
			c := m.start(s)
			contains(t, m.run(c, "sh", "-c", "id -u; id -G; cat /proc/self/status"), tt.want...)
			contains(t, m.run(c, "sh", "-c", "cat /proc/$(pidof sleep)/status"), tt.want[1:]...)
		})
	}
	s := m.spec("whereami")
	s.UID = &id
	c := m.start(s)
	e := m.wait(c) // port 80 is not for everybody
	contains(t, m.log(c), "permission denied")
	if e.Code != 1 {
		t.Errorf("exit %+v", e)
	}
}

func TestNetworkTools(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("agnhost"))
	contains(t, m.run(c, "ip", "-o", "addr", "show", "lo"), "127.0.0.1/8")
	contains(t, m.run(c, "ping", "-c1", "127.0.0.1"), "1 received")
	var out, errOut bytes.Buffer
	code, err := c.Exec(context.Background(),
		container.Exec{Args: []string{"sh", "-c",
			"ping -i 0.1 -w 60 127.0.0.1 >/dev/null & timeout 60 tcpdump -c2 -nli lo icmp; code=$?; kill $!; exit $code"}, Stdout: &out,
			Stderr: &errOut})
	if code != 0 || err != nil {
		t.Error(code, err, errOut.String())
	}
	contains(t, out.String(), "ICMP echo request")
}

func TestProgramOfImageInScript(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("nginx", "/bin/sh", "-c", "echo own page > /usr/share/nginx/html/index.html; exec nginx -g 'daemon off;'"))
	var out string
	for deadline := time.Now().Add(10 * time.Second); out == "" && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var b bytes.Buffer
		if code, _ := c.Exec(context.Background(), container.Exec{Args: []string{"curl", "-s", "127.0.0.1"}, Stdout: &b}); code == 0 {
			out = b.String()
		}
	}
	if out != "own page\n" {
		t.Errorf("answer %q", out)
	}
	contains(t, m.log(c), `"GET / HTTP/1.1" 200 9`)
}

// A first process whose starter died before anything was recorded must not stay: nobody would find it.
func TestEndsWithoutStarter(t *testing.T) {
	m := newMachine(t)
	dir := filepath.Join(m.TempDir(), "c")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	spec := fmt.Appendf(nil, `{"Name": "test", "Dir": %q, "Image": "pause", "Layers": ["/usr"]}`, dir)
	if err := os.WriteFile(dir+"/"+container.SpecFile, spec, 0o600); err != nil {
		t.Fatal(err)
	}
	read, report, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	read.Close()
	defer report.Close()
	cmd := exec.Command(binary, "first", dir)
	cmd.ExtraFiles = []*os.File{report} // descriptor 3
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET,
	}
	kill := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
	defer kill.Stop()
	var status *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &status) || status.ExitCode() != 1 {
		t.Errorf("the first process: %v, want exit status 1", err)
	}
}

// Idle containers end at once, also with a client that keeps its connection.
func TestStopWithOpenConnection(t *testing.T) {
	m := newMachine(t)
	c := m.start(m.spec("nginx"))
	hold, release := context.WithCancel(context.Background())
	defer release()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c.Exec(hold, container.Exec{Args: []string{"bash", "-c",
			"exec 3<>/dev/tcp/127.0.0.1/80; printf 'GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n' >&3; cat <&3"}})
	}()
	m.awaitLog(c)
	if err := c.Stop(context.Background(), time.Minute); err != nil {
		t.Fatal(err)
	}
	if e := c.Exit(); e.Code != 0 || e.Signal != 0 {
		t.Errorf("exit %+v", e)
	}
	<-ended
}

// TestRemoveWhileTheStarterRecords: who started a container notes its end in the folder that an adopter is removing.
func TestRemoveWhileTheStarterRecords(t *testing.T) {
	m := newMachine(t)
	for range 60 {
		c := m.start(m.spec("agnhost"))
		adopted, err := m.runtime.Adopt(c.Spec().Dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := adopted.Remove(); err != nil {
			t.Fatal(err)
		}
		m.wait(c)
	}
}
