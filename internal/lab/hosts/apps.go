package hosts

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/lab/layout"
	"packetwalk.dev/internal/lab/lifecycle"
	"packetwalk.dev/internal/lab/status"
	"packetwalk.dev/internal/pods/app"
	"packetwalk.dev/internal/pods/cgroup"
	"packetwalk.dev/internal/pods/isolation"
)

// apps runs the applications of hosts: the programs of built-in images, each confined to its host's network.
type apps struct{ *lifecycle.Env }

// appLimits bound a host's application, which is a server of ours.
var appLimits = cgroup.Limits{Memory: 512 << 20, Processes: 1024}

// start runs the host's application, or takes it over. It goes on when this process ends.
func (l apps) start(h *host) error {
	fail := func(err error) error { return fmt.Errorf("application of %s: %w", h.Name, err) }
	dir := filepath.Join(l.Dir.Host(h.Name), "app")
	p := supervise.Process{
		Name: h.Name, Path: l.Binaries.App, Args: isolation.ServerArgs(filepath.Join(dir, "spec.json")), Dir: "/", LogFile: l.Dir.Log(h.Name),
		PidFile: l.Dir.AppPid(h.Name),
	}
	spec, err := l.spec(h)
	if err != nil {
		return fail(err)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fail(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "spec.json"), text, 0o600); err != nil {
		return fail(err)
	}
	group := l.Dir.AppCgroup(h.Name)
	start := func(c *exec.Cmd) error {
		cgroup.Bound(group, appLimits) // what the machine cannot bound is in the lab's status
		if err := isolation.Start(c, h.ns.Start); err != nil {
			return err
		}
		if err := cgroup.Add(group, c.Process.Pid); err != nil {
			l.Log.Warn("application is not limited", "host", h.Name, "app", h.App, "err", err)
		}
		return nil
	}
	s, err := supervise.Run(p, start, supervise.Options{OnChange: func(s supervise.State) {
		if s.Pid == 0 {
			l.Log.Warn("application ended", "host", h.Name, "app", h.App, "exit", s.LastExit)
		}
	}})
	if err != nil {
		return fail(err)
	}
	h.app.Store(s)
	return nil
}

// spec returns the host's application as its image says, with the host's own arguments and files.
func (l apps) spec(h *host) (isolation.Server, error) {
	a, err := app.ByName(h.App)
	if err != nil {
		return isolation.Server{}, err
	}
	s := isolation.Server{
		Hostname: h.Name, Args: append(slices.Concat(a.Entrypoint, a.Cmd), h.args...), Env: a.Env, Mounts: h.mounts, Program: l.Binaries.App,
		Files: map[string]string{"/etc/resolv.conf": string(layout.ResolvConf(resolverOf(h.Kind)))},
	}
	if h.App == appDNS {
		s.Program = l.Binaries.DNS
	}
	for _, f := range a.Files {
		s.Files[f.Path] = f.Text
	}
	maps.Copy(s.Files, h.files)
	return s, nil
}

// appDNS is the application of the name servers, the program packetwalk-dns.
const appDNS = "dns"

// remove ends the host's application.
func (h *host) remove() error {
	if s := h.app.Swap(nil); s != nil {
		return s.Stop()
	}
	return nil
}

// detach leaves the host's application to the next lab process.
func (h *host) detach() {
	if s := h.app.Load(); s != nil {
		s.Detach()
	}
}

// appSteady is how long an application must run to be well.
const appSteady = time.Minute

// report adds the host to a status.
func (h *host) report(s *status.Status) {
	one := h.Host
	if p := h.app.Load(); p != nil {
		state := p.State()
		one.Pid = state.Pid
		if state.Failures >= status.MaxConsecutiveExits && (state.Pid == 0 || time.Since(state.Since) < appSteady) {
			s.Problems = append(s.Problems, fmt.Sprintf("%s: its application %s is crash-looping, %d times so far; its log: packetwalk logs %s",
				h.Name, h.App, state.Failures, h.Name))
		}
	}
	s.Hosts = append(s.Hosts, one)
}
