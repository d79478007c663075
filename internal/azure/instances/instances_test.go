package instances_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/azure/instances"
	"packetwalk.dev/internal/azure/vnet"
	"packetwalk.dev/internal/base/logs"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel"
	"packetwalk.dev/internal/pods/container"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
	"packetwalk.dev/internal/testing/containertest"
	"packetwalk.dev/internal/testing/kerneltest"
)

const (
	client   = "198.51.100.10"
	outbound = "203.0.113.2"
	subnetID = "/subscriptions/s/resourceGroups/rg/providers/Microsoft.Network/virtualNetworks/v/subnets/aci"
)

// binary is packetwalk-app, built once for all tests; library opens the store with its images.
var (
	binary  string
	library func() (*images.Store, error)
)

// finder finds built-in applications only.
func finder() *source.Finder {
	return &source.Finder{Own: func(string) bool { return false },
		Ensure: func(context.Context, source.Request) (*images.Store, bool, error) {
			s, err := library()
			return s, false, err
		},
		BuiltIn: &source.BuiltIn{Program: binary, Select: source.Machine(func([]string) {}), Open: library}}
}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "packetwalk-instances-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if binary, err = containertest.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	library = sync.OnceValues(func() (*images.Store, error) { return images.Open(filepath.Join(dir, "images")) })
	return m.Run()
}

// world is a virtual network with a subnet for container groups, and a client on the internet that answers with the caller's address.
type world struct {
	*testing.T
	cfg    instances.Config
	groups *instances.Groups
	stop   context.CancelFunc
}

func newWorld(t *testing.T) *world {
	t.Helper()
	kerneltest.NeedRoot(t)
	if _, err := finder().BuiltIn.Root(t.Context()); err != nil { // which takes longer than a group may
		t.Fatal(err)
	}
	dir := t.TempDir()
	prefix := netip.MustParsePrefix
	n := vnet.Network{
		VNets: []vnet.VNet{
			{Name: "v", AddressPrefixes: []netip.Prefix{prefix("10.13.0.0/16")},
				Subnets: []vnet.Subnet{{Name: "aci", Prefix: prefix("10.13.100.0/24")}}},
			vnet.ContainerHosts(netip.MustParsePrefix("100.64.0.0/16")),
		},
		DefaultOutbound: netip.MustParseAddr(outbound), Hosts: []vnet.Host{{Name: "client", Address: netip.MustParseAddr(client)}},
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	f, err := fabric.New(fabric.Config{Dir: filepath.Join(dir, "netns"), Network: n, StateFile: filepath.Join(dir, "fabric.json"), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.Background()) // t's own ends before the clean-up, which still works on the network
	t.Cleanup(end)
	if err := f.Start(ctx); err != nil {
		t.Fatal(err)
	}
	ns, err := kernel.CreateNamespace(filepath.Join(dir, "netns", "client"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Remove(), ns.Remove()); err != nil {
			t.Error(err)
		}
	})
	if err := f.AttachHost("client", ns); err != nil {
		t.Fatal(err)
	}
	l, err := ns.Listen(t.Context(), "tcp", client+":80")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) })}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { server.Close() })
	w := &world{T: t, cfg: instances.Config{
		Dir: filepath.Join(dir, "groups"), Disk: filepath.Join(dir, "disk"),
		NetNSDir: filepath.Join(dir, "netns", "groups"), HostsDir: filepath.Join(dir, "netns", "hosts"),
		Network: f,
		Runtime: &container.Runtime{Binary: binary}, NodeAgent: "/bin/false", Images: finder().Image,
		LogFile: func(g string) string { return filepath.Join(dir, g+".log") }, Log: log,
		Subscription: "s", ResourceGroup: "rg", Location: "westeurope",
	}}
	w.open()
	t.Cleanup(func() {
		groups, _ := w.groups.List(context.Background())
		for _, g := range groups {
			if err := w.groups.Delete(context.Background(), g.Name, "", 0); err != nil {
				t.Error(err)
			}
		}
		w.stop()
		for _, of := range []string{w.cfg.Dir, w.cfg.Disk} {
			if left, _ := filepath.Glob(filepath.Join(of, "*")); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		}
	})
	return w
}

// open makes the service anew, as a process that takes over from one that died.
func (w *world) open() {
	w.Helper()
	if w.stop != nil {
		w.stop()
	}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(context.Background())
	var err error
	if w.groups, err = instances.Open(ctx, w.cfg); err != nil {
		w.Fatal(err)
	}
}

func group(name string, restart aci.RestartPolicy, image string, command ...string) aci.ContainerGroup {
	return aci.ContainerGroup{Name: name, Tags: map[string]string{"UID": name}, Properties: aci.GroupProperties{
		RestartPolicy: restart, SubnetIDs: []aci.SubnetID{{ID: subnetID}}, IPAddress: &aci.IPAddress{Type: aci.Private},
		Containers: []aci.Container{{Name: "c", Properties: aci.ContainerProperties{
			Image: image, Command: command, Resources: aci.Resources{Requests: aci.ResourceAmounts{CPU: 1, MemoryInGB: 1}},
		}}},
	}}
}

func (w *world) put(g aci.ContainerGroup) {
	w.Helper()
	if _, err := w.groups.Put(context.Background(), g); err != nil {
		w.Fatal(err)
	}
}

// until waits until a group is as it should be.
func (w *world) until(name string, what func(aci.ContainerGroup, aci.ContainerView) bool) (aci.ContainerGroup, aci.ContainerView) {
	w.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		g, err := w.groups.Get(context.Background(), name)
		if err != nil {
			w.Fatal(err)
		}
		view := *g.Properties.Containers[0].Properties.InstanceView
		if what(g, view) {
			return g, view
		}
		if time.Now().After(deadline) {
			w.Fatalf("group %s is %+v, container %+v", name, g.Properties.InstanceView, view)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func running(_ aci.ContainerGroup, v aci.ContainerView) bool { return v.Ready }

func (w *world) exec(name string, command ...string) (string, int) {
	w.Helper()
	var out strings.Builder
	code, err := w.groups.Exec(context.Background(), name, "c", aci.Exec{Command: command, Stdout: &out, Stderr: &out})
	if err != nil {
		w.Fatal(err)
	}
	return out.String(), code
}

// TestGroups: two groups at once have addresses of the subnet, reach each other by it and the internet by their machines, whose links have
// the same addresses; they outlive the process that runs them, and nothing is left of them.
func TestGroups(t *testing.T) {
	w := newWorld(t)
	w.put(group("one", aci.RestartAlways, "packetwalk/hello"))
	w.put(group("two", aci.RestartAlways, "packetwalk/hello"))
	one, _ := w.until("one", running)
	two, _ := w.until("two", running)
	if a, b := one.Properties.IPAddress.IP.String(), two.Properties.IPAddress.IP.String(); a == b || !strings.HasPrefix(a, "10.13.100.") ||
		!strings.HasPrefix(b, "10.13.100.") {
		t.Fatalf("addresses %s and %s", a, b)
	}
	for _, name := range []string{"one", "two"} {
		if out, code := w.exec(name, "curl", "-sS", "--max-time", "5", "http://"+client); code != 0 || !strings.HasPrefix(out, outbound+":") {
			t.Errorf("%s is seen on the internet as %q, status %d", name, out, code)
		}
	}
	if out, code := w.exec("one", "curl", "-sS", "--max-time", "5", "-o", "/dev/null", "http://"+
		two.Properties.IPAddress.IP.String()); code != 0 {
		t.Errorf("one does not reach two: %s", out)
	}
	before := one.Properties.Containers[0].Properties.InstanceView.CurrentState.StartTime

	w.open()
	again, view := w.until("one", running)
	if again.Properties.IPAddress.IP != one.Properties.IPAddress.IP || !view.CurrentState.StartTime.Equal(before) || view.RestartCount != 0 {
		t.Errorf("taken over as %+v at %s, was %s at %s", view, again.Properties.IPAddress.IP, before, one.Properties.IPAddress.IP)
	}
	if out, code := w.exec("one", "true"); code != 0 {
		t.Errorf("exec after the takeover: %s", out)
	}
	files := []string{w.cfg.LogFile("one"), supervise.Aside(w.cfg.LogFile("one"))} // of a service proxy
	if err := errors.Join(os.WriteFile(files[0], nil, 0o600), os.WriteFile(files[1], nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := w.groups.Delete(context.Background(), "one", "", 0); err != nil {
		t.Fatal(err)
	}
	for _, log := range files {
		if _, err := os.Lstat(log); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", log, err)
		}
	}
	if _, err := w.groups.Get(context.Background(), "one"); !aci.IsNotFound(err) {
		t.Errorf("after its deletion: %v", err)
	}
	n, _ := w.cfg.Network.Snapshot()
	for _, nic := range n.NICs {
		if strings.HasPrefix(nic.Machine, "one") {
			t.Errorf("NIC %s is left", nic.Name)
		}
	}
	// The address is free again.
	w.put(group("three", aci.RestartAlways, "packetwalk/hello"))
	if g, _ := w.until("three", running); g.Properties.IPAddress.IP != one.Properties.IPAddress.IP {
		t.Errorf("the first free address is %s, got %s", one.Properties.IPAddress.IP, g.Properties.IPAddress.IP)
	}
}

// TestRestarts: the policy says what is started again, and what is kept of it.
func TestRestarts(t *testing.T) {
	w := newWorld(t)
	w.put(group("always", aci.RestartAlways, "busybox", "sh", "-c", "echo once; exit 0"))
	w.put(group("failing", aci.RestartOnFailure, "busybox", "sh", "-c", "exit 3"))
	w.put(group("done", aci.RestartOnFailure, "busybox", "true"))
	w.put(group("never", aci.RestartNever, "busybox", "sh", "-c", "exit 4"))
	w.put(group("nosuch", aci.RestartNever, "busybox", "/no/such/program"))
	w.until("always", func(_ aci.ContainerGroup, v aci.ContainerView) bool {
		return v.RestartCount > 0 && v.CurrentState.State == aci.StateTerminated
	})
	w.until("failing", func(g aci.ContainerGroup, v aci.ContainerView) bool {
		return v.RestartCount > 0 && g.Properties.InstanceView.State == aci.GroupRunning && v.PreviousState != nil &&
			*v.PreviousState.ExitCode == 3
	})
	for name, want := range map[string]struct {
		state string
		code  int
	}{"done": {aci.GroupSucceeded, 0}, "never": {aci.GroupFailed, 4}, "nosuch": {aci.GroupFailed, 128}} {
		_, v := w.until(name, func(g aci.ContainerGroup, _ aci.ContainerView) bool {
			return g.Properties.InstanceView.State == want.state
		})
		if v.RestartCount != 0 || *v.CurrentState.ExitCode != want.code {
			t.Errorf("%s: %+v", name, v)
		}
	}
	w.until("always", func(aci.ContainerGroup, aci.ContainerView) bool { // one that has just started has written nothing yet
		var log strings.Builder
		if err := w.groups.Logs(context.Background(), "always", "c", logs.Options{}, &log); err != nil || log.String() != "once\n" &&
			log.Len() > 0 {
			t.Fatalf("log %q, %v", log.String(), err)
		}
		return log.Len() > 0
	})
}

// TestProbes: a container is Ready by its readiness probe, and restarted by its liveness probe.
func TestProbes(t *testing.T) {
	w := newWorld(t)
	g := group("probed", aci.RestartAlways, "gcr.io/kuar-demo/kuard-amd64")
	c := &g.Properties.Containers[0].Properties
	c.ReadinessProbe = &aci.Probe{HTTPGet: &aci.HTTPProbe{Path: "/ready", Port: 8080}, PeriodSeconds: 1, FailureThreshold: 1}
	c.LivenessProbe = &aci.Probe{Exec: &aci.ExecProbe{Command: []string{"sh", "-c", "! test -e /tmp/sick"}}, PeriodSeconds: 1,
		FailureThreshold: 1}
	w.put(g)
	w.until("probed", running)
	w.exec("probed", "curl", "-sS", "-X", "PUT", "-d", `{"failNext": -1}`, "http://127.0.0.1:8080/ready/api")
	w.until("probed", func(_ aci.ContainerGroup, v aci.ContainerView) bool {
		return !v.Ready && v.CurrentState.State == aci.StateRunning
	})
	w.exec("probed", "touch", "/tmp/sick")
	w.until("probed", func(_ aci.ContainerGroup, v aci.ContainerView) bool { return v.RestartCount == 1 && v.Ready })
}

// TestVolumes: files of a volume are not the containers' to write, and when they are written anew no link leads root elsewhere, be it one
// that a container made when it still could.
func TestVolumes(t *testing.T) {
	w := newWorld(t)
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("of the machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	g := group("volumes", aci.RestartAlways, "busybox", "sleep", "1000")
	g.Properties.Volumes = []aci.Volume{{Name: "conf", Secret: map[string]string{"a": "b25l", "sub/b": "dHdv"}},
		{Name: "data", EmptyDir: &struct{}{}}}
	g.Properties.Containers[0].Properties.VolumeMounts = []aci.VolumeMount{
		{Name: "data", MountPath: "/conf/more/data"}, {Name: "conf", MountPath: "/conf"}, {Name: "data", MountPath: "/ro", ReadOnly: true},
	}
	w.put(g)
	w.until("volumes", running)
	script := "exec 2>/dev/null; cat /conf/a /conf/sub/b; for f in /conf/a /conf/sub/b /conf/..data/a /ro/x; do ln -sf " + victim +
		" $f && echo wrote $f; done; " +
		"chmod 700 /conf; echo kept > /conf/more/data/x; cat /ro/x; exit 0"
	if out, code := w.exec("volumes", "sh", "-c", script); code != 0 || !strings.HasPrefix(out, "onetwo") || strings.Contains(out, "wrote") ||
		!strings.HasSuffix(out, "kept\n") {
		t.Errorf("status %d: %s", code, out)
	}
	dir := filepath.Join(w.cfg.Disk, "volumes", "volumes", "conf")
	for _, name := range []string{"a", "sub", "..data", "..data_tmp"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.RemoveAll(path), os.Symlink(victim, path)); err != nil {
			t.Fatal(err)
		}
	}
	w.open()
	for _, want := range []string{"one", "two"} {
		w.until("volumes", func(aci.ContainerGroup, aci.ContainerView) bool {
			out, _ := w.exec("volumes", "cat", map[string]string{"one": "/conf/a", "two": "/conf/sub/b"}[want])
			return out == want
		})
	}
	info, err := os.Stat(victim)
	if b, _ := os.ReadFile(victim); err != nil || string(b) != "of the machine" || info.Mode().Perm() != 0o600 {
		t.Errorf("the machine's file is %q, %v, %v", b, info, err)
	}
}

// TestImage: a group of an image of the store runs the image's command, unless the group has one.
func TestImage(t *testing.T) {
	w := newWorld(t)
	store, err := images.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	base, err := finder().BuiltIn.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Assemble(t.Context(), images.Assembly{Name: "shop:v1", Layers: []images.Layer{{Dir: base}}, Env: []string{"SHOP=1"},
		Entrypoint: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	w.cfg.Images = (&source.Finder{
		Ensure: func(context.Context, source.Request) (*images.Store, bool, error) { return store, false, nil },
	}).Image
	w.open()
	w.put(group("own", aci.RestartAlways, "shop:v1"))
	w.put(group("given", aci.RestartAlways, "shop:v1", "sleep", "2000"))
	for name, want := range map[string]string{"own": "sleep 1000 ", "given": "sleep 2000 "} {
		w.until(name, running)
		if out, code := w.exec(name, "sh", "-c", "tr '\\0' ' ' < /proc/1/cmdline; echo $SHOP"); code != 0 || out != want+"1\n" {
			t.Errorf("%s: %q, status %d", name, out, code)
		}
	}
}

// TestPutRefused: what Azure would refuse is refused, and leaves nothing.
func TestPutRefused(t *testing.T) {
	w := newWorld(t)
	for what, change := range map[string]func(*aci.ContainerGroup){
		"InvalidContainerGroupName":    func(g *aci.ContainerGroup) { g.Name = strings.Repeat("a", 64) },
		"InvalidContainers":            func(g *aci.ContainerGroup) { g.Properties.Containers = nil },
		"InvalidOsType":                func(g *aci.ContainerGroup) { g.Properties.OSType = "Windows" },
		"SubnetNotFound":               func(g *aci.ContainerGroup) { g.Properties.SubnetIDs[0].ID += "x" },
		"InvalidSubnet":                func(g *aci.ContainerGroup) { g.Properties.IPAddress = nil },
		"InaccessibleImage":            func(g *aci.ContainerGroup) { g.Properties.Containers[0].Properties.Image = "no/such" },
		"ResourceRequestsNotSpecified": func(g *aci.ContainerGroup) { g.Properties.Containers[0].Properties.Resources.Requests.CPU = 0 },
		"VolumeNotFound": func(g *aci.ContainerGroup) {
			g.Properties.Containers[0].Properties.VolumeMounts = []aci.VolumeMount{{Name: "v", MountPath: "/v"}}
		},
		"InvalidContainerProbe": func(g *aci.ContainerGroup) { g.Properties.Containers[0].Properties.LivenessProbe = &aci.Probe{} },
	} {
		g := group("g", aci.RestartAlways, "busybox")
		change(&g)
		var e *aci.Error
		if _, err := w.groups.Put(context.Background(), g); !errors.As(err, &e) || e.Code != what || e.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", what, err)
		}
	}
	if all, _ := w.groups.List(context.Background()); len(all) != 0 {
		t.Errorf("there are %+v", all)
	}
}
