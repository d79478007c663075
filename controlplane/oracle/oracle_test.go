package oracle

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

func TestMain(m *testing.M) {
	logs := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(logs)
	_ = logs.Set("logtostderr", "false")
	_ = logs.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("needs root")
	}
}

// number reads an environment variable: SEED and N choose the worlds.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestRandomWorlds compares both modes of both proxies in N worlds with CHANGES changes each, the first of seed SEED and each other of the
// next number. One world of a failure is SEED=its seed N=1 and the same CHANGES.
func TestRandomWorlds(t *testing.T) {
	needRoot(t)
	seed, changes := number(t, "SEED", 1), number(t, "CHANGES", 4)
	failed, tally := 0, NewTally()
	t.Cleanup(func() { t.Logf("%+v", *tally) })
	for s := seed; s < seed+number(t, "N", 20); s++ {
		c := Random(s, int(changes))
		dir := t.TempDir()
		d, err := Run(t.Context(), dir, c, tally)
		if err != nil {
			t.Fatalf("seed %d: %v", s, err)
		}
		if d == nil {
			continue
		}
		small, d := Shrink(t.Context(), dir, c, d, 150)
		t.Errorf("seed %d disagrees at %s\nthe smallest case, to keep as testdata/NAME.yaml:\n%s", s, d, small.YAML())
		if failed++; failed == 3 {
			t.Fatal("enough")
		}
	}
}

// TestManyEndpoints compares the rules of more than 1000 endpoints, which have fewer comments, and what is there when most of them are
// gone. Both write everything anew each time: upstream does not rewrite the comments of services that stay as they are.
func TestManyEndpoints(t *testing.T) {
	needRoot(t)
	c := Random(number(t, "SEED", 1), 0)
	p, err := newPair(t.TempDir(), c.Settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	for _, n := range []int{1001, 3} {
		w := c.Steps[0].Clone()
		addMany(&w, n)
		ours := func() error { return errors.Join(p.ours.sync(t.Context(), w), p.ours.rewrite(t.Context())) }
		if err := both(func() error { return errors.Join(p.upstream.sync(w), p.upstream.rewrite()) }, ours); err != nil {
			t.Fatal(err)
		}
		a, b, err := p.save(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if rules := len(a["nat KUBE-SVC-"+chainOf("many/many", "tcp")+" -"]); rules < n {
			t.Fatalf("%d rules for %d endpoints", rules, n)
		}
		if text := diff(a, b); text != "" {
			t.Fatalf("%d endpoints (-upstream +ours):\n%.5000s", n, text)
		}
	}
}

// addMany adds a service with n endpoints in each family, in slices of up to 100.
func addMany(w *World, n int) {
	labels := map[string]string{discoveryv1.LabelServiceName: "many"}
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "many", Name: name, Labels: labels}
	}
	w.Services["many/many"] = &corev1.Service{ObjectMeta: meta("many"), Spec: corev1.ServiceSpec{
		ClusterIP: "10.0.200.1", ClusterIPs: []string{"10.0.200.1", "fd00:10::c8:1"}, Type: corev1.ServiceTypeClusterIP,
		SessionAffinity: corev1.ServiceAffinityNone,
		IPFamilies:      []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		Ports:           []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}},
	}}
	for i := range n {
		for family, address := range map[discoveryv1.AddressType]string{
			discoveryv1.AddressTypeIPv4: fmt.Sprintf("10.245.%d.%d", i/250, i%250), discoveryv1.AddressTypeIPv6: fmt.Sprintf("fd00:245::%x", i+1),
		} {
			key := fmt.Sprintf("many/%s-%d", family, i/100)
			if w.Slices[key] == nil {
				w.Slices[key] = &discoveryv1.EndpointSlice{ObjectMeta: meta(key[len("many/"):]), AddressType: family,
					Ports: []discoveryv1.EndpointPort{{Name: ptr(""), Port: ptr(int32(80)), Protocol: ptr(corev1.ProtocolTCP)}}}
			}
			w.Slices[key].Endpoints = append(w.Slices[key].Endpoints, discoveryv1.Endpoint{Addresses: []string{address}, NodeName: ptr("node-1")})
		}
	}
}

// chainOf returns the hash in the names of a service port's chains.
func chainOf(port, protocol string) string {
	sum := sha256.Sum256([]byte(port + protocol))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// TestKept compares both proxies in the cases that once made them disagree.
func TestKept(t *testing.T) {
	needRoot(t)
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			c, err := ParseCase(text)
			if err != nil {
				t.Fatal(err)
			}
			d, err := Run(t.Context(), t.TempDir(), c, NewTally())
			if err != nil {
				t.Fatal(err)
			}
			if d != nil {
				t.Error(d)
			}
		})
	}
}
