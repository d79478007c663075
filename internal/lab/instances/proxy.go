package instances

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"packetwalk.dev/internal/azure/aci"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/supervise"
)

// startProxy keeps the kube-proxy extension running in the group's namespace, if the group has one. One that an earlier process started is
// taken over. One that this process keeps already is left alone.
func (g *group) startProxy() error {
	g.mu.Lock()
	kept := g.proxy != nil
	g.mu.Unlock()
	if kept {
		return nil
	}
	for _, e := range g.spec.Properties.Extensions {
		if e.Properties.Type != aci.ExtensionKubeProxy {
			g.event("Warning", "ExtensionIgnored", fmt.Sprintf("there is no extension of type %s here", e.Properties.Type))
			continue
		}
		args, err := g.proxyArgs(e.Properties)
		if err != nil {
			return fmt.Errorf("extension %s: %w", e.Name, err)
		}
		s, err := supervise.Run(supervise.Process{
			Name: g.name, Path: g.cfg.NodeAgent, Args: args, Dir: "/", LogFile: g.cfg.LogFile(g.name),
			PidFile: filepath.Join(g.dir, "kube-proxy.pid"),
		}, g.startInside, supervise.Options{})
		if err != nil {
			return fmt.Errorf("extension %s: %w", e.Name, err)
		}
		g.mu.Lock()
		g.proxy = s
		g.mu.Unlock()
		return nil
	}
	return nil
}

// startInside starts a program in the group's namespace, as it is now.
func (g *group) startInside(cmd *exec.Cmd) error {
	g.mu.Lock()
	space := g.space
	g.mu.Unlock()
	if space == nil {
		return errors.New("the group has no network namespace now")
	}
	return space.Start(cmd)
}

// proxyArgs returns packetwalk-node's flags for the extension's settings. No client asks packetwalk-node for health or metrics there.
func (g *group) proxyArgs(p aci.ExtensionProperties) ([]string, error) {
	text, err := base64.StdEncoding.DecodeString(p.ProtectedSettings[aci.SettingKubeConfig])
	if err == nil {
		text, err = ownKubeconfig(text)
	}
	if err != nil {
		return nil, fmt.Errorf("protected setting %s: %w", aci.SettingKubeConfig, err)
	}
	file := filepath.Join(g.dir, "kube-proxy.kubeconfig")
	if err := atomicfile.Write(file, text, 0o600); err != nil {
		return nil, err
	}
	args := []string{"--kubeconfig=" + file, "--ip-families=IPv4", "--healthz-bind-address=", "--metrics-bind-address="}
	for _, f := range []struct{ flag, setting string }{
		{"--node-name=", aci.SettingNodeName}, {"--cluster-cidr=", aci.SettingClusterCIDR}, {"--proxy-rules=", aci.SettingProxyRules},
	} {
		if v := p.Settings[f.setting]; v != "" {
			args = append(args, f.flag+v)
		}
	}
	return args, nil
}

// stopProxy ends the extension, also one of an earlier process whose namespace is about to go.
func (g *group) stopProxy() error {
	g.mu.Lock()
	s := g.proxy
	g.proxy = nil
	g.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Stop()
}

func (g *group) proxyPid() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.proxy != nil {
		return g.proxy.State().Pid
	}
	for _, e := range g.spec.Properties.Extensions {
		if e.Properties.Type == aci.ExtensionKubeProxy {
			return 0
		}
	}
	return -1
}
