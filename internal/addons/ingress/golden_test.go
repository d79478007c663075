package ingress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden answers under testdata")

var config = Config{Class: "web", Controller: "k8s.io/ingress-nginx",
	DefaultBackend: types.NamespacedName{Namespace: "kube-system", Name: "default-http-backend"}}

// scenario is a txtar under testdata: objects (a Secret's certificate is made for the hosts of its annotation "hosts"; a Service's
// endpoints are those of its annotations "ready" and "unready", addresses by commas), requests, one URL a line, and what becomes of them.
type scenario struct {
	path     string
	archive  *txtar.Archive
	objects  Objects
	requests []string
}

func load(t testing.TB, path string) *scenario {
	t.Helper()
	archive, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	s := &scenario{path: path, archive: archive}
	for _, f := range archive.Files {
		switch f.Name {
		case "objects.yaml":
			for doc := range strings.SplitSeq(string(f.Data), "---\n") {
				s.add(t, []byte(doc))
			}
		case "requests":
			s.requests = strings.Fields(string(f.Data))
		}
	}
	return s
}

func (s *scenario) add(t testing.TB, doc []byte) {
	t.Helper()
	var kind struct{ Kind string }
	if err := yaml.Unmarshal(doc, &kind); err != nil {
		t.Fatalf("%s: %v", s.path, err)
	}
	var err error
	switch kind.Kind {
	case "Ingress":
		err = decode(doc, &s.objects.Ingresses)
	case "IngressClass":
		err = decode(doc, &s.objects.Classes)
	case "Service":
		if err = decode(doc, &s.objects.Services); err == nil {
			s.objects.Slices = append(s.objects.Slices, slicesOf(s.objects.Services[len(s.objects.Services)-1])...)
		}
	case "Secret":
		if err = decode(doc, &s.objects.Secrets); err == nil {
			secret := s.objects.Secrets[len(s.objects.Secrets)-1]
			if hosts := secret.Annotations["hosts"]; hosts != "" {
				secret.Data = mint(t, strings.Split(hosts, ","))
			}
		}
	default:
		t.Fatalf("%s: kind %q", s.path, kind.Kind)
	}
	if err != nil {
		t.Fatalf("%s: %v", s.path, err)
	}
}

func decode[T any](doc []byte, into *[]*T) error {
	o := new(T)
	*into = append(*into, o)
	return yaml.UnmarshalStrict(doc, o)
}

// slicesOf makes an EndpointSlice for each address, which is the most there can be.
func slicesOf(s *corev1.Service) (all []*discoveryv1.EndpointSlice) {
	for _, list := range []string{"ready", "unready"} {
		ready := list == "ready"
		for address := range strings.SplitSeq(s.Annotations[list], ",") {
			if address == "" {
				continue
			}
			slice := &discoveryv1.EndpointSlice{}
			slice.Namespace, slice.Labels = s.Namespace, map[string]string{discoveryv1.LabelServiceName: s.Name}
			for _, p := range s.Spec.Ports {
				target := int32(p.TargetPort.IntValue())
				if target == 0 {
					target = p.Port
				}
				slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &target})
			}
			slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}
			all = append(all, slice)
		}
	}
	return all
}

// mint makes a self-signed certificate.
func mint(t testing.TB, hosts []string) map[string][]byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: hosts, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// answers tells what becomes of the requests, and the problems.
func answers(t testing.TB, table *Table, requests []string) string {
	t.Helper()
	var b strings.Builder
	for _, text := range requests {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		d := table.Match(u.Host, u.Path)
		fmt.Fprintf(&b, "%s\n  %s\n", text, d)
		if d.Route != nil && d.Route.Redirect {
			b.WriteString("  by HTTP: to HTTPS\n")
		}
		if u.Scheme == "https" {
			if c := table.Certificate(u.Hostname()); c != nil {
				fmt.Fprintf(&b, "  certificate of %s\n", c.Secret)
			} else {
				b.WriteString("  the controller's own certificate\n")
			}
		}
	}
	for _, p := range table.Problems {
		passing := ""
		if p.Passing {
			passing = " (passing)"
		}
		fmt.Fprintf(&b, "! %s%s\n", p, passing)
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			s := load(t, path)
			got := answers(t, Build(config, s.objects), s.requests)
			golden(t, s, got)
			// The same objects in another order make the same table.
			for range 10 {
				if again := answers(t, Build(config, shuffled(s.objects)), s.requests); again != got {
					t.Fatal("another order gives another table (-first +again):\n" + cmp.Diff(got, again))
				}
			}
		})
	}
}

func shuffled(o Objects) Objects {
	return Objects{shuffle(o.Classes), shuffle(o.Ingresses), shuffle(o.Services), shuffle(o.Slices), shuffle(o.Secrets)}
}

func shuffle[T any](in []T) []T {
	out := append([]T(nil), in...)
	mathrand.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

func golden(t *testing.T, s *scenario, got string) {
	t.Helper()
	for i, f := range s.archive.Files {
		if f.Name != "answers" {
			continue
		}
		if *update {
			s.archive.Files[i].Data = []byte(got)
			if err := os.WriteFile(s.path, txtar.Format(s.archive), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if diff := cmp.Diff(string(f.Data), got); diff != "" {
			t.Error("(-golden +got):\n" + diff)
		}
		return
	}
	t.Fatalf("%s has no answers", s.path)
}

// slow follows the API's own definition of which of a host's routes takes a path, by elements and without an order of the routes.
func slow(routes []Route, p string) *Route {
	elements := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return r == '/' })
	}
	var best *Route
	better := func(r *Route) bool {
		if best == nil || r.exact() != best.exact() {
			return best == nil || r.exact()
		}
		return len(r.Path) > len(best.Path)
	}
	for i := range routes {
		r := &routes[i]
		takes := p == r.Path
		switch r.Type {
		case networkingv1.PathTypePrefix:
			want, have := elements(r.Path), elements(p)
			takes = len(have) >= len(want) && cmp.Equal(want, have[:len(want)])
			if len(want) == 0 {
				takes = true
			}
		case networkingv1.PathTypeImplementationSpecific:
			takes = len(p) >= len(r.Path) && p[:len(r.Path)] == r.Path
		}
		if takes && better(r) {
			best = r
		}
	}
	return best
}

func FuzzMatch(f *testing.F) {
	s := load(f, "testdata/paths.txtar")
	table := Build(config, s.objects)
	for _, r := range s.requests {
		u, _ := url.Parse(r)
		f.Add(u.Host, u.Path)
	}
	f.Add("Shop.Example.org.:80", "/a//b/../c/.")
	f.Fuzz(func(t *testing.T, host, path string) {
		d := table.Match(host, path)
		if d.Backend == nil || d.Path == "" || d.Path[0] != '/' || d.String() == "" {
			t.Fatalf("%q %q: %+v", host, path, d)
		}
		if again := table.Match(d.Host, d.Path); again.Route != d.Route || again.Path != d.Path {
			t.Fatalf("%q %q is %q, which is %q", host, path, d.Path, again.Path)
		}
		if d.HostMatch == HostExact {
			if want := slow(d.Rules.Routes, d.Path); want != d.Route && (want == nil || d.Route == nil || want.Path != d.Route.Path) {
				t.Fatalf("%q takes route %+v, want %+v", d.Path, d.Route, want)
			}
		}
	})
}
