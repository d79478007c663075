package rulewatch

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	"packetwalk.dev/internal/node/agent/iptablescmd"
	"packetwalk.dev/internal/node/proxy/nftables"
	"packetwalk.dev/internal/node/service"
	"packetwalk.dev/internal/syntax/nfnetlink"
	"packetwalk.dev/internal/testing/kerneltest"
)

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

// TestNoticesOfOtherProcessNamespaces: in a container the kernel's notices have process numbers that it does not know.
func TestNoticesOfOtherProcessNamespaces(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns, err := netns.Create(filepath.Join(t.TempDir(), "ns"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	listens, notices, ended := make(chan struct{}), make(chan notice, 9), make(chan error, 1)
	go func() {
		ended <- ns.Do(func() error {
			return watch(ctx, func() { close(listens) }, func(n notice) { notices <- n })
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, ns.Remove()); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-listens:
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	_, err = program.Command{Path: "unshare", Args: []string{"-pf", "nft", "add table ip x; delete table ip x"}, In: ns.Do}.Output(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n := <-notices
	p := iptablescmd.New(service.IPv4, iptablescmd.VariantInstalled)
	p.NoteRun(1) // in its namespace
	watcher := New(&ruleset.NFTables{NetNS: ns.FD()}, []*iptablescmd.Programs{p})
	for _, nested := range []bool{false, true} {
		if p.Nested = nested; watcher.isOwnChange(n) != nested {
			t.Errorf("%+v, in a process namespace: %v", n, nested)
		}
	}
	// What the agent itself writes is its own wherever it runs; not what others of its process do.
	other := &ruleset.NFTables{NetNS: ns.FD()}
	table := nfnetlink.Table{Family: unix.NFPROTO_IPV4, Name: nftables.TableName}
	for _, nft := range []*ruleset.NFTables{watcher.nft, other, watcher.nft} {
		defer nft.Close()
		if err := nft.Commit(ctx, []netlink.Message{table.Make(), table.Delete()}, 0); err != nil {
			t.Fatal(err)
		}
		n := <-notices
		for _, p.Nested = range []bool{false, true} {
			if watcher.isOwnChange(n) != (nft == watcher.nft) {
				t.Errorf("%+v, by the agent: %v, in a process namespace: %v", n, nft == watcher.nft, p.Nested)
			}
		}
	}
}
