package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"packetwalk.dev/internal/node/service"
)

const (
	routeLocalnet = "net/ipv4/conf/all/route_localnet"
	tcpBeLiberal  = "net/netfilter/nf_conntrack_tcp_be_liberal"
	ctCloseWait   = "net/netfilter/nf_conntrack_tcp_timeout_close_wait"
	ctEstablished = "net/netfilter/nf_conntrack_tcp_timeout_established"
)

// readSysctl gives an integer sysctl of the network namespace that the process is in.
func readSysctl(name string) (int, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys", name))
	if err != nil {
		return 0, fmt.Errorf("read sysctl: %w", err)
	}
	value, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return value, nil
}

// ensureSysctl writes a sysctl if it has another value.
func ensureSysctl(name string, value int) error {
	if now, err := readSysctl(name); err == nil && now == value {
		return nil
	}
	if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(strconv.Itoa(value)), 0); err != nil {
		return fmt.Errorf("set sysctl to %d: %w", value, err)
	}
	return nil
}

// setSysctls sets what kube-proxy sets. The timeouts are for the better, not needed; route_localnet is needed for what the rules promise.
func (a *agent) setSysctls() error {
	for name, d := range map[string]time.Duration{ctCloseWait: a.CloseWait, ctEstablished: a.Established} {
		if d > 0 {
			if err := ensureSysctl(name, int(d.Seconds())); err != nil {
				a.log("%v", err)
			}
		}
	}
	if !a.config(service.IPv4).LocalhostNodePorts {
		return nil
	}
	if err := ensureSysctl(routeLocalnet, 1); err != nil {
		return fmt.Errorf("%w; or start with --iptables-localhost-nodeports=false", err)
	}
	return nil
}
