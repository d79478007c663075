package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"time"

	"packetwalk.dev/internal/azure/firewall"
	"packetwalk.dev/internal/base/supervise"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/packetlog"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/lab/cluster"
)

// firewallSettings make the kernel of a firewall take up no connection in its middle, and send no redirects: all its packets come and go by
// one interface.
var firewallSettings = []netns.Sysctl{
	{Key: "net/netfilter/nf_conntrack_tcp_loose", Value: "0"},
	{Key: "net/ipv4/conf/all/send_redirects", Value: "0"}, {Key: "net/ipv4/conf/eth0/send_redirects", Value: "0"},
}

// firewallOf returns the firewall that a VM is, nil for one that is none.
func firewallOf(c *cluster.Cluster, vm string) *cluster.Firewall {
	for _, v := range c.Spec.Azure.VMs {
		if v.Name == vm {
			return v.Firewall
		}
	}
	return nil
}

// setFirewall makes a host the firewall that it is to be, or none.
func (l *Hosts) setFirewall(m *host, want *cluster.Firewall) error {
	was := m.firewall
	m.firewall = want
	if want == nil {
		if was == nil {
			return nil
		}
		m.endLog()
		return ruleset.ApplyNFT(context.Background(), m.ns, "add table ip firewall\ndelete table ip firewall\n")
	}
	if err := m.ns.SetSysctls(m.settings()...); err != nil {
		return err
	}
	if was == nil || !reflect.DeepEqual(was, want) {
		if err := l.writeFirewall(m); err != nil {
			return err
		}
	}
	if m.stopLog == nil {
		l.startLog(m)
	}
	return nil
}

// writeFirewall writes a firewall's rules.
func (l *Hosts) writeFirewall(m *host) error {
	address, err := netip.ParseAddr(m.Address)
	if err != nil {
		return fmt.Errorf("firewall %s: %w", m.Name, err)
	}
	var rules []firewall.Rule
	for _, r := range m.firewall.DNAT {
		rules = append(rules, firewall.Rule{Name: r.Name, Protocol: strings.ToLower(string(r.Protocol)), Port: uint16(r.Port),
			To: netip.AddrPortFrom(r.Address, uint16(r.ToPort))})
	}
	return ruleset.ApplyNFT(context.Background(), m.ns, firewall.Script(address, rules))
}

// startLog writes what a firewall logs to the host's log until endLog.
func (l *Hosts) startLog(m *host) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	m.stopLog = func() { cancel(); <-done }
	path := l.Dir.Log(m.Name)
	go supervise.BoundLog(ctx, path)
	go func() {
		defer close(done)
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			defer file.Close()
			err = packetlog.Read(ctx, m.ns, firewall.LogGroup, func(e packetlog.Entry) {
				fmt.Fprintf(file, "%s %s %s\n", time.Now().UTC().Format(time.RFC3339), e.Prefix, e.Packet)
			})
		}
		if err != nil {
			l.Log.Warn("the firewall's log ended", "host", m.Name, "err", err)
		}
	}()
}

// endLog ends the reader of a firewall's log.
func (h *host) endLog() {
	if h.stopLog != nil {
		h.stopLog()
		h.stopLog = nil
	}
}
