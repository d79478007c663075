package remote_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"packetwalk.dev/internal/testing/eventually"
)

// TestLookUp shows that a name is looked up from a pod's network namespace, with the files of its container. The sandbox, an older process,
// lacks the hosts file. A link in the container leads nowhere else.
func TestLookUp(t *testing.T) {
	w := newWorld(t)
	listen, err := w.hosts["node/n"].ListenPacket(t.Context(), "udp", "203.0.113.9:53")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: listen, Handler: dns.HandlerFunc(func(r dns.ResponseWriter, m *dns.Msg) {
		a := new(dns.Msg).SetReply(m)
		a.Rcode = dns.RcodeNameError
		if q := m.Question[0]; q.Name == "web.shop.example." && q.Qtype == dns.TypeA { // its address is the client's
			a.Rcode = dns.RcodeSuccess
			host, _, _ := net.SplitHostPort(r.RemoteAddr().String())
			a.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: q.Qtype, Class: q.Qclass}, A: net.ParseIP(host)}}
		}
		_ = r.WriteMsg(a)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	const conf = "nameserver 203.0.113.9\nsearch example\noptions ndots:5 timeout:10 attempts:1\n"
	w.process(t, "pod/default/a", map[string]string{"resolv.conf": conf}, nil)
	w.process(t, "pod/default/a", map[string]string{"resolv.conf": conf, "hosts": "192.0.2.7 aliased.shop\n"}, nil)
	w.process(t, "node/n", nil, map[string]string{"resolv.conf": "/../../../../etc/hostname"})

	node, _, _, err := w.talk("v1")
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	none := "no process in the network namespace has a file etc/resolv.conf"
	if _, err := os.Readlink("/proc/1/ns/net"); errors.Is(err, fs.ErrPermission) { // not even root may look at it, and it may be there
		none = "look for a process in the network namespace: /proc/1/ns/net: permission denied"
	}
	for _, c := range []struct{ host, name, want string }{
		{"pod/default/a", "web.shop", "web.shop.example 10.1.0.2 203.0.113.9"},
		{"pod/default/a", "aliased.shop", "aliased.shop 192.0.2.7 /etc/hosts"},
		{"pod/default/a", "web.shop.", "web.shop 203.0.113.9"},
		{"node/n", "web.shop", none},
		{"pod/default/b", "web.shop", `host "pod/default/b"`},
	} {
		found, err := node.LookUp(t.Context(), c.host, c.name)
		got := found.Name
		for _, a := range found.Addresses {
			got += " " + a.String()
		}
		if got += " " + found.Server; err != nil {
			got = err.Error()
		}
		if !strings.HasPrefix(got, c.want) {
			t.Errorf("%s from %s: %s, want %s", c.name, c.host, got, c.want)
		}
		if isNone := errors.Is(err, fs.ErrNotExist); isNone != (c.host == "pod/default/b") {
			t.Errorf("%s: %v", c.host, err)
		}
	}
}

// process starts a process in a host's namespace, whose root directory has some files and links in /etc, for as long as the test.
func (w *world) process(t *testing.T, host string, files, links map[string]string) {
	t.Helper()
	root := t.TempDir()
	etc := filepath.Join(root, "etc")
	err := os.Mkdir(etc, 0o755)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644))
	}
	for name, target := range links {
		err = errors.Join(err, os.Symlink(target, filepath.Join(etc, name)))
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("perl", "-e", `chroot($ARGV[0]) && chdir("/") or die $!; $| = 1; print "ready\n"; sleep 600`, root)
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.hosts[host].Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	eventually.Succeeds(t, 10*time.Second, func() error {
		_, err := ready.Read(make([]byte, 6))
		return err
	})
	time.Sleep(20 * time.Millisecond) // times of processes have ticks of 10 ms
}
