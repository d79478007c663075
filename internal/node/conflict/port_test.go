package conflict

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"
)

// TestPorts: who listens on kube-proxy's ports counts, but this process, another user, and who says that it is no service proxy, or waits.
func TestPorts(t *testing.T) {
	if !inWorld(t) {
		return
	}
	serve := func(t *testing.T, address string, handler http.HandlerFunc) {
		t.Helper()
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { s.Close() })
	}
	answer := func(status int, v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(v)
		}
	}
	mode := answer(http.StatusOK, "iptables")
	for _, c := range []struct {
		name, address string
		handler       http.HandlerFunc
		counts        bool
	}{
		{"kube-proxy's health", "0.0.0.0:10256", answer(http.StatusNotFound, ""), true},
		{"on one address", "127.0.0.5:10256", answer(http.StatusNotFound, ""), true},
		{"packetwalk-node", "[::]:10256", answer(http.StatusOK, Ready{Ready: true}), true},
		{"one that waits", "[::1]:10256", answer(http.StatusServiceUnavailable, Ready{Waiting: []string{"another"}}), false},
		{"kube-proxy's metrics", "127.0.0.1:10249", mode, true},
		{"metrics of no service proxy", "127.0.0.1:10249", answer(http.StatusNotFound, ""), false},
		{"another port", "127.0.0.1:10250", mode, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			serve(t, c.address, c.handler)
			found, err := ports(t.Context(), "/proc/self")
			if err != nil || found != nil {
				t.Errorf("this process's own: %q, %v", found, err)
			}
			// As another process with the same sockets in its network namespace sees them.
			other := start(t, roleSleep, syscall.SysProcAttr{}, os.Args[0])
			found, err = ports(t.Context(), fmt.Sprintf("/proc/%d", other.Process.Pid))
			if err != nil || (len(found) == 1) != c.counts || len(found) > 1 {
				t.Errorf("%q, %v", found, err)
			}
		})
	}
	t.Run("one that does not answer", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:10249")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		other := start(t, roleSleep, syscall.SysProcAttr{}, os.Args[0])
		if found, err := ports(t.Context(), fmt.Sprintf("/proc/%d", other.Process.Pid)); err != nil || len(found) != 1 {
			t.Errorf("%q, %v", found, err)
		}
	})
}

// TestListeners reads lines as the kernel prints them, and whatever else.
func TestListeners(t *testing.T) {
	const text = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 18312 1 0000000000000000 100 0 0 10 0
   1: 00000000:2810 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77 1 0000000000000000 100 0 0 10 0
   2: 0100007F:2809 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 5 1 0000000000000000 20 4 30 10 -1
   3: 0000000000000000FFFF00000100007F:2810 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 9 1
   4: zz:2810 0:0 0A 0 0 0 0 0 9 1
   5: 01:2810 0:0 0A 0 0 0 0 0 9 1
`
	var got []string
	for _, l := range listeners(text) {
		got = append(got, fmt.Sprint(l.at, " ", l.uid, " ", l.inode))
	}
	if want := []string{"127.0.0.1:10249 0 18312", "0.0.0.0:10256 1000 77", "127.0.0.1:10256 0 9"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func FuzzListeners(f *testing.F) {
	f.Add("   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 18312 1")
	f.Fuzz(func(t *testing.T, text string) {
		for _, l := range listeners(text) {
			if l.at.Port() != metricsPort && l.at.Port() != healthzPort || !l.at.Addr().IsValid() {
				t.Errorf("%+v of %q", l, text)
			}
		}
	})
}
