package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/iptables"
	"packetwalk.dev/internal/node/proxyconfig"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestWhatTheNodeSays: its pods' ranges and its own address become part of the rules when they are known, and not before; without its
// object they stay.
func TestWhatTheNodeSays(t *testing.T) {
	node := func(ips []string, pods ...string) *corev1.Node {
		n := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: pods}}
		for _, ip := range ips {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
		}
		return n
	}
	for _, c := range []struct {
		name    string
		options Options
		node    *corev1.Node
		family  service.Family
		had     string // its own address, before
		pods    string // "": no range
		own     string
		ports   string // "all", or addresses
		err     string
	}{
		{name: "pods of the node", options: Options{PodsOfNode: true}, node: node(nil, "10.1.0.0/24", "fd00::/64"), family: service.IPv6,
			pods: "fd00::/64", ports: "all"},
		{name: "pods of the other family", options: Options{PodsOfNode: true}, node: node(nil, "10.1.0.0/24"), family: service.IPv6,
			ports: "all"},
		{name: "no pods yet", options: Options{PodsOfNode: true}, node: node(nil), family: service.IPv4, err: "spec.podCIDRs"},
		{name: "no node yet", options: Options{PodsOfNode: true}, family: service.IPv4, err: "spec.podCIDRs"},
		{name: "primary", options: Options{NodePortPrimary: true}, node: node([]string{"127.0.0.1"}), family: service.IPv4, own: "127.0.0.1",
			ports: "127.0.0.1"},
		{name: "primary of the other family", options: Options{NodePortPrimary: true}, node: node([]string{"127.0.0.1"}), family: service.IPv6,
			ports: "all"},
		{name: "primary, not known yet", options: Options{NodePortPrimary: true}, family: service.IPv4},
		{name: "primary, known before", options: Options{NodePortPrimary: true}, family: service.IPv4, had: "127.0.0.1", own: "127.0.0.1",
			ports: "127.0.0.1"},
		{name: "bind address", options: Options{NodePortPrimary: true, NodeIP: netip.MustParseAddr("127.0.0.1")},
			node: node([]string{"10.0.0.9"}), family: service.IPv4, own: "127.0.0.1", ports: "127.0.0.1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, p := &agent{Options: c.options}, &familyProxy{programsOf: programsOf{family: c.family}}
			if c.had != "" {
				p.config.NodeIP = netip.MustParseAddr(c.had)
			}
			err := a.configure(p, kube.Delta{Node: c.node})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text := func(valid bool, s string) string {
				if valid {
					return s
				}
				return ""
			}
			ports := "all"
			if p.config.NodePortIPs != nil {
				ports = ""
				for _, ip := range p.config.NodePortIPs {
					ports += ip.String()
				}
			}
			got := [3]string{text(p.config.Detector.CIDR.IsValid(), p.config.Detector.CIDR.String()), text(p.config.NodeIP.IsValid(),
				p.config.NodeIP.String()), ports}
			if want := [3]string{c.pods, c.own, c.ports}; got != want {
				t.Errorf("pods, own address, node ports: %q, want %q", got, want)
			}
			p.triggered = map[service.Key]time.Time{}
			if err := a.configure(p, kube.Delta{}); err != nil || c.pods != "" && p.config.Detector.CIDR.String() != c.pods {
				t.Errorf("once there are rules, without the node: pods %s, %v", p.config.Detector.CIDR, err)
			}
		})
	}
}

// TestFirstSyncIsQueued: before there are rules, metrics tell of which families there will be some.
func TestFirstSyncIsQueued(t *testing.T) {
	m := newMetrics(BackendNFTables)
	o := Options{ServiceProxy: true, Backend: BackendNFTables, Rules: iptables.RulesCurrent,
		Families: []service.Family{service.IPv4, service.IPv6}}
	if _, err := newAgent(o, m, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, f := range o.Families {
		want := fmt.Sprintf("\nkubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{ip_family=%q} ", f)
		if !strings.Contains(string(m.text()), want) {
			t.Errorf("no %q in\n%s", want, m.text())
		}
	}
}

// TestSupportedFamilies: with iptables there is IPv6 where its programs get at the kernel's table, not where they are all there is.
func TestSupportedFamilies(t *testing.T) {
	if _, err := sysctl.ReadInt("net/ipv6/conf/all/forwarding"); err != nil {
		kerneltest.Missing(t, "IPv6: %v", err)
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	for status, want := range map[int]string{0: "[IPv4 IPv6]", 1: "[IPv4]"} {
		for _, name := range []string{"ip6tables-save", "ip6tables-restore"} {
			if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, "#!/bin/sh\nexit %d\n", status), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		o := Defaults()
		if got := fmt.Sprintf("%v", o.SupportedFamilies()); got != want {
			t.Errorf("where ip6tables-save ends with %d: %s, want %s", status, got, want)
		}
	}
}

// TestInit: what is set at first needs no rights when the agent runs.
func TestInit(t *testing.T) {
	kerneltest.NeedRoot(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), "PACKETWALK_TEST_ROLE=init"), os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	got, err := cmd.Output()
	if want := "route_localnet 1, close_wait 77"; err != nil || string(got) != want {
		t.Errorf("%q, %v; want %s", got, err, want)
	}
}

func playInit() error {
	if err := Init(Options{ServiceProxy: true, Backend: BackendIPTables, LocalhostPorts: true, CloseWait: 77 * time.Second},
		slog.Default()); err != nil {
		return err
	}
	localnet, err := sysctl.ReadInt(routeLocalnet)
	wait, failed := sysctl.ReadInt(ctCloseWait)
	fmt.Printf("route_localnet %d, close_wait %d", localnet, wait)
	return errors.Join(err, failed)
}

// TestServes: the addresses that kube-proxy has on its metrics port; and one that is taken is a fault, or the end.
func TestServes(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close()
	configuration := &proxyconfig.Configuration{Mode: proxyconfig.ModeNFTables}
	configuration.APIVersion, configuration.Kind = proxyconfig.APIVersion, proxyconfig.Kind
	a := &agent{Options: Options{ServiceProxy: true, Backend: BackendNFTables, MetricsAddress: address, HealthzAddress: taken.Addr().String(),
		Configz: configuration}, metrics: newMetrics(BackendNFTables), health: proxy.NewHealth(time.Minute, time.Now)}
	a.faults = faults{warn: t.Logf, now: map[string]fault{}}
	ctx, cancel := context.WithCancel(t.Context())
	var beside sync.WaitGroup
	defer func() { cancel(); beside.Wait() }()
	if err := a.serve(ctx, &beside); err != nil {
		t.Fatal(err)
	}
	get := func(path string) string {
		r, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Body.Close() }()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	if got := get("/proxyMode"); got != "nftables" {
		t.Errorf("mode %q", got)
	}
	if got := get(faultsPath); !strings.Contains(got, "--healthz-bind-address") {
		t.Errorf("faults %s; want the address that is taken", got)
	}
	var configz map[string]json.RawMessage
	if err := json.Unmarshal([]byte(get("/configz")), &configz); err != nil {
		t.Fatal(err)
	}
	if c, strange, err := proxyconfig.Read(configz[proxyconfig.Group]); err != nil || len(strange) > 0 || c.Mode != proxyconfig.ModeNFTables {
		t.Errorf("configz is no file of kube-proxy's: %v, %v, %s", err, strange, configz)
	}
	a.BindHardFail, a.MetricsAddress = true, ""
	if err := a.serve(ctx, &beside); err == nil || !strings.Contains(err.Error(), "--healthz-bind-address") {
		t.Errorf("an address that is taken, with --bind-address-hard-fail: %v", err)
	}
}
