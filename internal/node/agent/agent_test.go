package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/node/kube"
	"packetwalk.dev/internal/node/proxy"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
)

func TestPacerNeverUsesMoreThanItsShare(t *testing.T) {
	for _, c := range []struct {
		backend string
		min     time.Duration
		took    time.Duration
		atOnce  int           // syncs of the first burst
		between time.Duration // from one start to the next after that
	}{
		{BackendIPTables, time.Second, 10 * time.Millisecond, 6, 1010 * time.Millisecond},
		{BackendIPTables, time.Second, 50 * time.Millisecond, 6, 1050 * time.Millisecond},
		{BackendIPTables, time.Second, 100 * time.Millisecond, 6, 1100 * time.Millisecond},
		{BackendIPTables, time.Second, 400 * time.Millisecond, 1, 7400 * time.Millisecond},
		{BackendIPTables, time.Second, 2 * time.Second, 1, 17 * time.Second},
		{BackendNFTables, 0, 2 * time.Second, 1, 17 * time.Second},
		{BackendNFTables, 0, 400 * time.Millisecond, 1, 7400 * time.Millisecond},
		{BackendNFTables, 0, 50 * time.Millisecond, 6, 1050 * time.Millisecond},
		{BackendNFTables, 0, 40 * time.Millisecond, 32, 240 * time.Millisecond},
	} {
		p := newPacer(c.backend, c.min, 30*time.Second)
		now := time.Unix(0, 0)
		if p.after(now, now.Add(c.took), true); p.delay(now.Add(c.took)) != 0 {
			t.Errorf("%v: the first sync is rested from", c.took)
		}
		now = now.Add(c.took)
		for round := range 2 { // what a burst ran ahead is rested after quiet, and another one may come
			if d := p.delay(now); d != 0 {
				t.Errorf("%v, round %d: after quiet: wait %v", c.took, round, d)
			}
			for i := range 40 {
				start := now
				p.after(start, start.Add(c.took), true)
				now = start.Add(c.took)
				d := p.delay(now)
				switch {
				case i+1 < c.atOnce && d != c.took:
					t.Errorf("%v, round %d: after sync %d of a burst: wait %v, want %v", c.took, round, i+1, d, c.took)
				case i+1 > c.atOnce && c.took+d != c.between:
					t.Errorf("%v, round %d: after sync %d: the next begins %v after this one, want %v", c.took, round, i+1, c.took+d, c.between)
				}
				now = now.Add(d)
			}
			now = now.Add(burst)
		}
	}
}

// slowLook is a syncer that needs seconds to look at all rules.
type slowLook struct {
	syncer
	synced chan time.Time
	fails  error
}

func (slowLook) Configure(proxy.Config) {}

func (slowLook) Canary(context.Context) (bool, error) { return true, nil }

func (s slowLook) Sync(context.Context, *service.Ports, []service.Key) (proxy.Result, error) {
	s.synced <- time.Now()
	return proxy.Result{}, nil
}

func (s slowLook) Repair(context.Context) ([]string, error) {
	time.Sleep(4 * time.Second)
	return nil, s.fails
}

// changingAPI is an API that something changes in.
type changingAPI struct {
	oneNode
	changed chan struct{}
}

func (c changingAPI) Changed() <-chan struct{} { return c.changed }

func (changingAPI) Delta(bool) kube.Delta {
	return kube.Delta{Services: map[service.Key]kube.ServiceObjects{{Namespace: "default", Service: "web"}: {}}}
}

// looping is an agent whose looks are such, in a bubble of time; its context lasts an hour there.
func looping(t *testing.T, look slowLook, more ...*familyProxy) (a *agent, api changingAPI, ended <-chan struct{}) {
	o := Defaults()
	o.ServiceProxy, o.NodeName, o.MetricsAddress, o.HealthzAddress = false, "node0", "", ""
	a, err := newAgent(o, newMetrics(o.Backend), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	api = changingAPI{changed: make(chan struct{}, 1)}
	a.source = api
	a.proxies = append([]*familyProxy{{programsOf: programsOf{family: service.IPv4}, ports: service.NewPorts(), syncer: look}}, more...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	done := make(chan struct{})
	go func() { a.loop(ctx, func() {}); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	look.awaits(t, done)
	return a, api, done
}

// awaits is when the next sync is.
func (s slowLook) awaits(t *testing.T, ended <-chan struct{}) time.Time {
	select {
	case at := <-s.synced:
		return at
	case <-ended:
		t.Fatal("no sync in an hour")
	}
	return time.Time{}
}

// TestChangesDoNotWaitForLooks: after a look at the rules of thousands of services, which takes seconds, a change is written at once.
func TestChangesDoNotWaitForLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := slowLook{synced: make(chan time.Time, 9)}
		a, api, ended := looping(t, look)
		for range 3 {
			a.notices <- struct{}{}
			time.Sleep(noticeQuiet + 5*time.Second) // the look is over
			changed := time.Now()
			api.changed <- struct{}{}
			if took := look.awaits(t, ended).Sub(changed); took > 5*time.Second { // it may wait for another look
				t.Errorf("a change was written after %v", took)
			}
		}
	})
}

// TestLookThatFails: a syncer that could not look at its rules, or put them back, is asked to sync.
func TestLookThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := slowLook{synced: make(chan time.Time, 9), fails: unix.ENOBUFS}
		a, _, ended := looping(t, look)
		a.notices <- struct{}{}
		told := time.Now()
		if took := look.awaits(t, ended).Sub(told); took > 10*time.Second {
			t.Errorf("the rules were written after %v", took)
		}
	})
}

// TestFamilyThatFails: the rules of one family follow changes at their own pace while the other's cannot be written, and that is tried
// again with each change.
func TestFamilyThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		look := slowLook{synced: make(chan time.Time, 9)}
		refused := 0
		six := &familyProxy{programsOf: programsOf{family: service.IPv6}, ports: service.NewPorts(),
			syncer: onceMore{failingSyncer{err: unix.ENOMEM}, &refused, func() {}}}
		a, api, ended := looping(t, look, six)
		for range 60 {
			changed := time.Now()
			api.changed <- struct{}{}
			if took := look.awaits(t, ended).Sub(changed); took > 5*time.Second { // it may wait for a look
				t.Errorf("a change was written after %v", took)
			}
		}
		if refused < 60 {
			t.Errorf("the other was tried %d times", refused)
		}
		if four := a.proxies[0]; len(four.pending) > 0 || four.triggered == nil || len(six.pending) != 1 {
			t.Errorf("pending: %v and %v; observed of the good one: %v", four.pending, six.pending, four.triggered)
		}
		before := refused
		time.Sleep(20 * time.Minute)
		if n := refused - before; n < 35 || n > 50 {
			t.Errorf("without changes the other was tried %d times in 20 minutes", n)
		}
	})
}

// TestPacerIsNoLag: with nftables many changes a second wait for each other no longer than somebody who follows them notices.
func TestPacerIsNoLag(t *testing.T) {
	p := newPacer(BackendNFTables, 0, 30*time.Second)
	for now := time.Unix(0, 0); now.Before(time.Unix(60, 0)); {
		end := now.Add(5 * time.Millisecond)
		p.after(now, end, true)
		if now = end.Add(p.delay(end)); now.Sub(end) > 30*time.Millisecond {
			t.Fatalf("at %v: %v from one sync to the next", end, now.Sub(end))
		}
	}
}

// TestPacerKeepsThePeriod: a least time between two syncs that somebody set is kept between any two, also after the first.
func TestPacerKeepsThePeriod(t *testing.T) {
	for backend, period := range map[string]time.Duration{BackendIPTables: 3 * time.Second, BackendNFTables: time.Second} {
		p := newPacer(backend, period, 30*time.Second)
		for now, i := time.Unix(0, 0), 0; i < 10; i++ {
			end := now.Add(5 * time.Millisecond)
			p.after(now, end, true)
			if now = end.Add(p.delay(end)); now.Sub(end) < period {
				t.Errorf("%s: %v after sync %d, want %v", backend, now.Sub(end), i+1, period)
			}
		}
	}
}

func TestPacerTriesAgainLaterAndLater(t *testing.T) {
	now := time.Unix(0, 0)
	p := pacer{min: time.Second, backoff: backoff{max: 30 * time.Second}, began: true}
	for i, c := range []struct {
		took time.Duration
		ok   bool
		want time.Duration
	}{
		{0, false, time.Second},
		{0, false, 2 * time.Second},
		{0, false, 4 * time.Second},
		{10 * time.Second, false, 55 * time.Second},
		{0, false, 16 * time.Second},
		{0, false, 30 * time.Second},
		{0, true, forever},
		{0, false, time.Second},
	} {
		p.after(now, now.Add(c.took), c.ok)
		now = now.Add(c.took)
		if got := p.until(now); got != c.want {
			t.Errorf("sync %d: wait %v, want %v", i, got, c.want)
		}
		if !c.ok {
			now = now.Add(p.until(now))
		}
	}
}

// Claim B7, to the letter, and kubelet's way to have no such rule.
func TestKubenetRules(t *testing.T) {
	for cidr, want := range map[string][]string{
		"192.168.0.0/16": {
			"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
			`! -d 192.168.0.0/16 -m comment --comment "kubenet: SNAT for outbound traffic from cluster" -m addrtype ! --dst-type LOCAL -j MASQUERADE`,
		},
		"0.0.0.0/0": {"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE"},
	} {
		o := Defaults()
		o.NonMasquerade = netip.MustParsePrefix(cidr)
		var got []string
		for _, r := range o.nodeRules().Postrouting {
			got = append(got, r.Spec())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", cidr, diff)
		}
	}
}

func TestOptionsReportEverythingAtOnce(t *testing.T) {
	o := Defaults()
	o.NodeName, o.Rules, o.Backend, o.MasqueradeBit, o.SyncPeriod = "n", "1.5", "ebpf", 40, 0
	o.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("10.2.0.0/16")}
	o.NodeMasquerade = []netip.Prefix{netip.MustParsePrefix("fd00::/8")}
	o.NonMasquerade = netip.MustParsePrefix("fd00::/8")
	o.IPMasqAgent, o.MasqForm, o.MasqConfigMaps, o.MasqResync = true, "v3", nil, time.Millisecond
	err := o.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, flag := range []string{"--proxy-rules", "--proxy-backend", "--iptables-masquerade-bit", "--iptables-sync-period", "--cluster-cidr",
		"--node-masquerade-exclude",
		"--non-masquerade-cidr", "--ip-masq-format", "--ip-masq-configmaps", "--ip-masq-resync-interval"} {
		if !strings.Contains(err.Error(), flag+": ") {
			t.Errorf("%s is not reported in %q", flag, err)
		}
	}
	o = Defaults()
	if err := o.Validate(); err != nil || o.NodeName == "" {
		t.Errorf("defaults: %v", err)
	}
}

func TestLocalhostNodePortsFollowNodePortAddresses(t *testing.T) {
	for cidrs, want := range map[string]bool{"": true, "10.0.0.0/8": false, "127.0.0.0/8": true, "0.0.0.0/0": true, "fd00::/8": true} {
		o := Defaults()
		if cidrs != "" {
			o.NodePortCIDRs = []netip.Prefix{netip.MustParsePrefix(cidrs)}
		}
		if got := o.config(service.IPv4).LocalhostNodePorts; got != want {
			t.Errorf("%s: %v, want %v", cidrs, got, want)
		}
	}
}

func TestServiceCIDRs(t *testing.T) {
	object := func(cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	objects := []*networkingv1.ServiceCIDR{object("10.9.0.0/16", "fd01::/112"), object("10.0.0.0/16"), object("10.9.0.0/16", "nonsense")}
	for f, want := range map[service.Family]string{service.IPv4: "[10.0.0.0/16 10.9.0.0/16]", service.IPv6: "[fd01::/112]"} {
		if got := fmt.Sprint(serviceCIDRs(f, objects)); got != want {
			t.Errorf("%s: %s, want %s", f, got, want)
		}
	}
}

func TestNodeEligibility(t *testing.T) {
	now := metav1.Now()
	deleting, tainted := &corev1.Node{}, &corev1.Node{}
	deleting.DeletionTimestamp = &now
	tainted.Spec.Taints = []corev1.Taint{{Key: toBeDeleted}}
	for name, c := range map[string]struct {
		node *corev1.Node
		want bool
	}{"there": {&corev1.Node{}, true}, "none": {nil, false}, "deleting": {deleting, false}, "tainted": {tainted, false}} {
		if got := eligible(c.node); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestNoticesEndWithTheirTransaction(t *testing.T) {
	message := func(kind int, family byte, attributes ...byte) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)},
			Data:   append([]byte{family, 0, 0, 0}, attributes...),
		}
	}
	pid := []byte{8, 0, unix.NFTA_GEN_PROC_PID, 0, 0, 0, 1, 2}
	names := func(table, chain string) []byte {
		e := netlink.NewAttributeEncoder()
		e.String(unix.NFTA_RULE_TABLE, table)
		e.String(unix.NFTA_RULE_CHAIN, chain)
		b, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	end := message(unix.NFT_MSG_NEWGEN, unix.AF_UNSPEC, pid...)
	damage := false
	for i, c := range []struct {
		m    netlink.Message
		ok   bool
		want notice
	}{
		{message(unix.NFT_MSG_NEWRULE, unix.AF_INET, names("nat", "FOREIGN")...), false, notice{}},
		{message(unix.NFT_MSG_NEWSETELEM, unix.AF_INET, names("foreign", nftables.TableName)...), false, notice{}},
		{message(unix.NFT_MSG_DELRULE, unix.AF_BRIDGE), false, notice{}},
		{message(unix.NFT_MSG_NEWRULE, unix.AF_BRIDGE, names("nat", "KUBE-SERVICES")...), false, notice{}},
		{message(unix.NFT_MSG_NEWSETELEM, unix.AF_INET, 1, 2, 3, 4, 5), false, notice{}},
		{end, true, notice{pid: 258}},
		{message(unix.NFT_MSG_DELCHAIN, unix.AF_INET6), false, notice{}},
		{end, true, notice{pid: 258, damage: true}},
		{message(unix.NFT_MSG_NEWRULE, unix.AF_INET, names("nat", "KUBE-SVC-A")...), false, notice{}},
		{message(unix.NFT_MSG_NEWRULE, unix.AF_INET, names("nat", "FOREIGN")...), false, notice{}},
		{end, true, notice{pid: 258, damage: true}},
		{message(unix.NFT_MSG_DELSETELEM, unix.AF_INET6, names(nftables.TableName, "services")...), false, notice{}},
		{end, true, notice{pid: 258, damage: true}},
		{message(unix.NFT_MSG_NEWGEN, unix.AF_UNSPEC), true, notice{}},
		{netlink.Message{}, false, notice{}},
	} {
		got, ok := readNotice(c.m, &damage)
		if ok != c.ok || got != c.want {
			t.Errorf("message %d: %+v %v", i, got, ok)
		}
	}
}

// FuzzNotice: no message of the kernel makes the reader panic, or end a transaction that it does not end.
func FuzzNotice(f *testing.F) {
	f.Add(uint16(unix.NFT_MSG_NEWGEN), []byte{0, 0, 0, 0, 8, 0, unix.NFTA_GEN_PROC_PID, 0, 0, 0, 1, 2})
	f.Add(uint16(unix.NFT_MSG_DELRULE), []byte{unix.AF_INET, 0, 0, 0})
	f.Fuzz(func(t *testing.T, kind uint16, data []byte) {
		damage := true
		header := netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind)}
		n, ends := readNotice(netlink.Message{Header: header, Data: data}, &damage)
		if ends == damage || n.damage != ends {
			t.Errorf("%+v %v, damage %v", n, ends, damage)
		}
	})
}

func TestProgramsQuoteTheLineThatFailed(t *testing.T) {
	p := newPrograms(service.IPv4, VariantInstalled)
	p.restore = "false"
	if err := p.Restore(context.Background(), nil); err == nil {
		t.Error("no error")
	}
	p.restore = "no-such-program"
	if err := p.Restore(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("got %v", err)
	}
	input := []byte("*nat\n-A X -j Y\nCOMMIT\n")
	for message, want := range map[string]string{
		"iptables-restore v1.8.9 (nf_tables): \nline 2: RULE_APPEND failed": " (line 2: -A X -j Y)",
		"iptables-restore: line 2 failed":                                   " (line 2: -A X -j Y)",
		"Error occurred at line: 2":                                         " (line 2: -A X -j Y)",
		"line 9: what":                                                      "",
		"nothing":                                                           "",
	} {
		if got := failedLine(message, input); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}
