package faults

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	"golang.org/x/net/dns/dnsmessage"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab"
	"packetwalk.dev/test/world"
)

// TestReplaceDNS asks the cluster's DNS without a pause while its pod is replaced: each question is answered.
func TestReplaceDNS(t *testing.T) {
	w := world.Up(t, "azure-cni")
	ns, err := netns.Open(lab.DirOf(w.Name).NetNS(node))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	lookUp := func() error {
		return lookUpFrom(t.Context(), ns, "10.0.0.10:53", "kubernetes.default.svc.cluster.local.")
	}
	eventually.Succeeds(t, time.Minute, lookUp)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error)
	go func() {
		asked, lost := 0, 0
		var last error
		for ; ctx.Err() == nil; asked++ {
			time.Sleep(5 * time.Millisecond) // few ports are used again while the flow of before lives
			if err := lookUp(); err != nil {
				lost, last = lost+1, fmt.Errorf("at %s: %w", time.Now().Format(time.TimeOnly), err)
				t.Log(last)
			}
		}
		if lost > 0 {
			last = fmt.Errorf("%d of %d look-ups were lost, the last one: %w", lost, asked, last)
		}
		done <- last
	}()
	for range 2 {
		old := w.Kubectl(t, "-n", "kube-system", "get", "pods", "-l", "k8s-app=kube-dns", "-o", "jsonpath={.items[0].metadata.name}")
		w.Kubectl(t, "-n", "kube-system", "rollout", "restart", "deployment/coredns")
		t.Log("restarted at", time.Now().Format(time.TimeOnly))
		w.Kubectl(t, "-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
		w.Kubectl(t, "-n", "kube-system", "wait", "--for=delete", "pod/"+old, "--timeout=60s")
		t.Log("gone at", time.Now().Format(time.TimeOnly))
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// lookUpFrom asks a server once for the address of a name, by a socket that is asked nothing else.
func lookUpFrom(ctx context.Context, ns *netns.Namespace, server, name string) error {
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 1, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	packed, err := query.Pack()
	if err != nil {
		return err
	}
	conn, err := ns.Dial(ctx, "udp", server)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(packed); err != nil {
		return err
	}
	buf := make([]byte, 512)
	n, err := conn.Read(buf)
	if err != nil {
		return err
	}
	var answer dnsmessage.Message
	if err := answer.Unpack(buf[:n]); err != nil {
		return err
	}
	if answer.RCode != dnsmessage.RCodeSuccess || len(answer.Answers) == 0 {
		return errors.New(answer.GoString())
	}
	return nil
}
