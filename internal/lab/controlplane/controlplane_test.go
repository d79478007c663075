package controlplane

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/client-go/tools/clientcmd"
)

var update = flag.Bool("update", false, "write the golden files anew")

func testConfig(dir string) Config {
	return Config{
		Dir: dir, Binary: "/usr/lib/packetwalk/packetwalk-controlplane", ClusterName: "lab",
		Address: netip.MustParseAddr("203.0.113.1"), ServiceCIDR: netip.MustParsePrefix("10.0.0.0/16"),
	}
}

// The command lines and the files of a plain control plane, and of one with everything set.
func TestGolden(t *testing.T) {
	plain := testConfig("/run/packetwalk/lab")
	full := plain
	full.PodCIDR = netip.MustParsePrefix("10.244.0.0/16")
	full.EgressSocket, full.EndpointsBatch = "/run/packetwalk/lab/egress.sock", time.Second
	six := plain
	six.Address, six.ServiceCIDR = netip.MustParseAddr("2001:db8:113::1"), netip.MustParsePrefix("fd00:10::/108")

	var archive txtar.Archive
	for _, c := range []struct {
		name   string
		config Config
	}{{"plain", plain}, {"full", full}, {"ipv6", six}} {
		for _, component := range c.config.Components() {
			archive.Files = append(archive.Files, txtar.File{Name: c.name + "/" + component.Name, Data: describe(component)})
		}
		for _, file := range configurationFiles(c.config) {
			archive.Files = append(archive.Files, txtar.File{Name: c.name + file.path, Data: file.text})
		}
	}
	got := txtar.Format(&archive)
	path := filepath.Join("testdata", "components.txtar")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("run with -update when this is wanted (-want +got):\n%s", diff)
	}
}

func describe(c Component) []byte {
	var text bytes.Buffer
	fmt.Fprintf(&text, "%s\n  %s\n", c.Path, strings.Join(c.Args, "\n  "))
	fmt.Fprintf(&text, "log %s\npid %s\nafter %q\nserving %+v\nready %+v\n", c.LogFile, c.PidFile, c.After, c.Serving, c.Ready)
	return text.Bytes()
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Config)
		want string // part of the error; empty: none
	}{
		{"good", func(*Config) {}, ""},
		{"relative folder", func(c *Config) { c.Dir = "lab" }, "not an absolute path"},
		{"long folder", func(c *Config) { c.Dir = "/run/" + strings.Repeat("a", 100) }, "too long for a unix socket"},
		{"no program", func(c *Config) { c.Binary = "" }, "go run ./tools/controlplane path"},
		{"no address", func(c *Config) { c.Address = netip.Addr{} }, "no API server address"},
		{"unspecified address", func(c *Config) { c.Address = netip.IPv4Unspecified() }, "no API server address"},
		{"no Services", func(c *Config) { c.ServiceCIDR = netip.Prefix{} }, "no Service CIDR"},
		{"two families", func(c *Config) { c.ServiceCIDR = netip.MustParsePrefix("fd00::/108") }, "not of one family"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config := testConfig("/run/packetwalk/lab")
			test.edit(&config)
			err := config.Validate()
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error is %v, want one with %q", err, test.want)
			}
		})
	}
}

// All that Prepare writes is its owner's alone, fits together, and stays when it is called again.
func TestPrepare(t *testing.T) {
	dir := t.TempDir()
	config := testConfig(dir)
	config.EgressSocket = filepath.Join(dir, "egress.sock")
	now := time.Now()
	authority, err := Prepare(config, now)
	if err != nil {
		t.Fatal(err)
	}
	first := contents(t, dir)
	again, err := Prepare(config, now)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, contents(t, dir)); diff != "" {
		t.Errorf("the second Prepare changed files (-first +second):\n%s", diff)
	}
	if !bytes.Equal(authority.Certificate, again.Certificate) {
		t.Error("the second Prepare made another authority")
	}
	for _, user := range []User{Admin, ControllerManagerUser, SchedulerUser, NodeAgentUser} {
		checkKubeconfig(t, authority, config, user)
	}
}

// contents reads all files below dir, and checks that no other user has permissions on them.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		if entry.IsDir() {
			return nil
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

// checkKubeconfig reads a kubeconfig as clients do and verifies its certificate.
func checkKubeconfig(t *testing.T, authority *Authority, config Config, user User) {
	t.Helper()
	rest, err := clientcmd.BuildConfigFromFlags("", config.KubeconfigPath(user))
	if err != nil {
		t.Fatal(err)
	}
	if rest.Host != "https://203.0.113.1:443" || !bytes.Equal(rest.CAData, authority.Certificate) {
		t.Errorf("%s: server %s, or another authority", user.Name, rest.Host)
	}
	leaf := parse(t, rest.CertData)
	if err := verify(authority, leaf, "", x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("%s: %v", user.Name, err)
	}
	if leaf.Subject.CommonName != user.Common || !cmp.Equal(leaf.Subject.Organization, user.Groups) {
		t.Errorf("%s: certificate of %s", user.Name, leaf.Subject)
	}
	if err := verify(authority, leaf, "", x509.ExtKeyUsageServerAuth); err == nil {
		t.Errorf("%s: the client certificate serves as a server's", user.Name)
	}
}

func TestServingCertificates(t *testing.T) {
	config := testConfig(t.TempDir())
	now := time.Now()
	authority, err := NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	server, err := authority.Server(config, now)
	if err != nil {
		t.Fatal(err)
	}
	kubelet, err := authority.Kubelet("node-0", netip.MustParseAddr("10.13.76.4"), now)
	if err != nil {
		t.Fatal(err)
	}
	certificate := func(c tls.Certificate) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
	}
	tests := []struct {
		certificate []byte
		name        string
		good        bool
	}{
		{server.Certificate, "203.0.113.1", true},
		{server.Certificate, "10.0.0.1", true},
		{server.Certificate, "127.0.0.1", true},
		{server.Certificate, "localhost", true},
		{server.Certificate, "kubernetes.default.svc.cluster.local", true},
		{server.Certificate, "10.0.0.2", false},
		{certificate(kubelet), "node-0", true},
		{certificate(kubelet), "10.13.76.4", true},
		{certificate(kubelet), "203.0.113.1", false},
	}
	for _, test := range tests {
		err := verify(authority, parse(t, test.certificate), test.name, x509.ExtKeyUsageServerAuth)
		if (err == nil) != test.good {
			t.Errorf("verify %s: %v, want good %v", test.name, err, test.good)
		}
	}
}

func TestParseAuthorityRefusesOthers(t *testing.T) {
	now := time.Now()
	authority, err := NewAuthority("test", now)
	if err != nil {
		t.Fatal(err)
	}
	client, err := authority.Client(Admin, now)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseAuthority(client); err == nil {
		t.Error("a client's certificate was taken for an authority's")
	}
	if _, err := parseAuthority(KeyPair{Certificate: authority.Certificate, Key: client.Key}); err == nil {
		t.Error("another's key was taken for the authority's")
	}
}

func parse(t *testing.T, text []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(text)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func verify(authority *Authority, leaf *x509.Certificate, name string, usage x509.ExtKeyUsage) error {
	roots := x509.NewCertPool()
	roots.AddCert(authority.certificate)
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func TestFailedChecks(t *testing.T) {
	text := "[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\nreadyz check failed\n"
	want := "[-]etcd failed: reason withheld, [-]poststarthook/rbac/bootstrap-roles failed: reason withheld"
	if got := failedChecks(text); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := failedChecks("Unauthorized\n"); got != "Unauthorized" {
		t.Errorf("got %q", got)
	}
}

// TestFrontProxy: what aggregated API servers know the API server by is made once, also in the folder of an older version, and the lab's
// own authority, which signs for others, is not behind it.
func TestFrontProxy(t *testing.T) {
	config := testConfig(t.TempDir())
	own, err := Prepare(config, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		text, err := os.ReadFile(config.pki(name))
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	first := read("front-proxy-client.crt")
	if err := os.Remove(config.pki("front-proxy-client.crt")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Prepare(config, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(read("front-proxy-client.crt"), read("front-proxy-client.key"))
	if err != nil {
		t.Fatal(err)
	}
	for ca, good := range map[string]bool{string(read("front-proxy-ca.crt")): true, string(own.Certificate): false} {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(ca))
		_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if (err == nil) != good {
			t.Errorf("verified: %v, want %v", err, good)
		}
	}
	if bytes.Equal(first, read("front-proxy-client.crt")) || pair.Leaf.Subject.CommonName != FrontProxyUser.Common {
		t.Errorf("the certificate is %s's", pair.Leaf.Subject)
	}
}

// TestEnvironment keeps a pace of garbage collection that the user sets.
func TestEnvironment(t *testing.T) {
	for want, environ := range map[string][]string{"A=b GOGC=200": {"A=b"}, "A=b GOGC=50": {"A=b", "GOGC=50"}} {
		if got := strings.Join(environment(environ), " "); got != want {
			t.Errorf("of %q: %s, want %s", environ, got, want)
		}
	}
}
