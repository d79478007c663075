package serviceproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/ti-mo/conntrack"

	"packetwalk.dev/internal/base/sysctl"
	"packetwalk.dev/internal/node/agent/options"
	"packetwalk.dev/internal/node/service"
)

const (
	routeLocalnet = "net/ipv4/conf/all/route_localnet"
	tcpBeLiberal  = "net/netfilter/nf_conntrack_tcp_be_liberal"
	ctCloseWait   = "net/netfilter/nf_conntrack_tcp_timeout_close_wait"
	ctEstablished = "net/netfilter/nf_conntrack_tcp_timeout_established"
	ctUDP         = "net/netfilter/nf_conntrack_udp_timeout"
	ctUDPStream   = "net/netfilter/nf_conntrack_udp_timeout_stream"
	ctMax         = "net/netfilter/nf_conntrack_max"
)

// Init sets the sysctls that New would, which takes more rights than rules do; New then finds them set. As for kube-proxy, limits and
// timeouts of connection tracking that the kernel refuses are logged and are no error.
func Init(o options.Options, logger *slog.Logger) error {
	if !o.ServiceProxy {
		return nil
	}
	if err := loadConntrack(); err != nil {
		logger.Warn("load connection tracking: " + err.Error())
	}
	better, err := setSysctls(&o)
	if better != nil {
		logger.Warn(better.Error())
	}
	return err
}

// loadConntrack has the kernel load the module of connection tracking, without which its sysctls do not exist yet: the first question about
// it does so.
func loadConntrack() error {
	if _, err := sysctl.Read(ctMax); err == nil {
		return nil
	}
	c, err := conntrack.Dial(nil)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.StatsGlobal()
	return err
}

// setSysctls sets what kube-proxy sets. Those of conntrack are for the better, not needed; route_localnet is needed for what the rules
// promise.
func setSysctls(o *options.Options) (better, needed error) {
	values := map[string]int{
		ctCloseWait: int(o.CloseWait.Seconds()), ctEstablished: int(o.Established.Seconds()),
		ctUDP: int(o.UDPTimeout.Seconds()), ctUDPStream: int(o.UDPStreamTimeout.Seconds()),
	}
	if o.BeLiberal {
		values[tcpBeLiberal] = 1
	}
	for name, value := range values {
		if value > 0 {
			_, err := sysctl.Ensure(name, strconv.Itoa(value))
			better = errors.Join(better, err)
		}
	}
	better = errors.Join(better, raiseConntrackMax(o))
	if !o.Config(service.IPv4).LocalhostNodePorts {
		return better, nil
	}
	if _, err := sysctl.Ensure(routeLocalnet, "1"); err != nil {
		needed = fmt.Errorf("%w; or start with --iptables-localhost-nodeports=false", err)
	}
	return better, needed
}

// hashSize is how many buckets conntrack's table has, on the whole machine.
const hashSize = "/sys/module/nf_conntrack/parameters/hashsize"

// raiseConntrackMax makes room for as many flows as are wanted, never for fewer than there was, and a bucket for every four of them
// (k8s.io/kubernetes cmd/kube-proxy/app/conntrack.go). Both are the machine's: the kernel refuses the first in other network namespaces
// than its first one, and without it the second stays.
func raiseConntrackMax(o *options.Options) error {
	if o.ConntrackPerCore == 0 {
		return nil
	}
	want := max(o.ConntrackPerCore*runtime.NumCPU(), o.ConntrackMin)
	now, err := sysctl.ReadInt(ctMax)
	if err != nil || now >= want {
		return err
	}
	if _, err := sysctl.Ensure(ctMax, strconv.Itoa(want)); err != nil {
		return err
	}
	text, err := os.ReadFile(hashSize)
	if err != nil {
		return fmt.Errorf("read the size of conntrack's table: %w", err)
	}
	if buckets, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && buckets >= want/4 {
		return nil
	}
	if err := os.WriteFile(hashSize, []byte(strconv.Itoa(want/4)), 0); err != nil {
		return fmt.Errorf("set the size of conntrack's table: %w", err)
	}
	return nil
}
