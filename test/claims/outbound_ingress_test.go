package claims

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"packetwalk.dev/internal/testing/eventually"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"packetwalk.dev/test/world"
)

// What AKS's addon for HTTP application routing makes, and the host of examples/outbound/whereami-ingress.yaml.
const (
	addon       = "addon-http-application-routing-"
	addonLabel  = "app=addon-http-application-routing-nginx-ingress"
	ingressHost = "whereami.2dd932cdfb92f26cea11.westeurope.aksapp.io"
)

// whereami is what that application answers with, as far as it is looked at.
type whereami struct {
	Private string `json:"my_private_ip"`
	Caller  string `json:"your_address"`
	Host    string `json:"host"`
	For     string `json:"x-forwarded-for"`
}

// asks has a machine ask a URL, and gives the answer.
func asks(w *world.World, host string, curl ...string) (string, error) {
	return w.Try(10*time.Second, append([]string{"ssh", "--name", w.Name, host, "--", "curl", "-sS", "--max-time", "3"}, curl...)...)
}

// who has the internet's client ask a URL of whereami.
func who(w *world.World, url string) (answer whereami, err error) {
	out, err := asks(w, "client", "-f", url)
	if err == nil {
		err = json.Unmarshal([]byte(out), &answer)
	}
	return answer, err
}

// enableAddon adds the addon to a world whose cluster.yaml has none, as "az aks enable-addons" does, until the test ends.
func enableAddon(t *testing.T, w *world.World, file string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	with := filepath.Join(t.TempDir(), "cluster.yaml")
	text = regexp.MustCompile(`(?m)^spec:$`).ReplaceAll(text, []byte("spec:\n  addons: [http_application_routing]"))
	if err := os.WriteFile(with, text, 0o600); err != nil {
		t.Fatal(err)
	}
	out := w.Run(t, "up", "--name", w.Name, "-f", with)
	t.Cleanup(func() { w.Run(t, "up", "--name", w.Name, "-f", file) })
	expect(t, out, `^  \+ spec\.addons: \[http_application_routing\]$`)
	awaitAddon(t, w)
}

func awaitAddon(t *testing.T, w *world.World) {
	t.Helper()
	for _, d := range []string{"default-http-backend", "nginx-ingress-controller", "external-dns"} {
		eventually.Succeeds(t, 60*time.Second, func() error {
			_, err := w.Try(60*time.Second, "kubectl", "--name", w.Name, "rollout", "status", "-n", "kube-system", "deployment/"+addon+d,
				"--timeout=120s")
			return err
		})
	}
}

// ingressPod returns the controller's pod that runs.
func ingressPod(t *testing.T, w *world.World) (pod corev1.Pod) {
	t.Helper()
	eventually.Succeeds(t, 60*time.Second, func() error {
		pods := w.Pods(t, "-n", "kube-system", "-l", addonLabel)
		if len(pods) == 0 {
			return errors.New("no controller runs")
		}
		pod = pods[0]
		return nil
	})
	return pod
}

// sees waits until the application answers at a URL from just these pods.
func sees(t *testing.T, w *world.World, url string, want []string) (last whereami) {
	t.Helper()
	eventually.Succeeds(t, 30*time.Second, func() error {
		seen := map[string]bool{}
		for range 2 * len(want) {
			var err error
			if last, err = who(w, url); err != nil {
				return err
			}
			seen[last.Private] = true
		}
		for _, ip := range want {
			if !seen[ip] || len(seen) != len(want) {
				return fmt.Errorf("answers from %v, want %v", seen, want)
			}
		}
		return nil
	})
	return last
}

func podIPs(t *testing.T, w *world.World, args ...string) (ips []string) {
	t.Helper()
	for _, p := range w.Pods(t, args...) {
		ips = append(ips, p.Status.PodIP)
	}
	return ips
}

// TestB10: the addon is added to a cluster that runs, as the article does.
func TestB10(t *testing.T) {
	t.Parallel()
	o := outboundWorld(t)
	enableAddon(t, o.World, o.Example("outbound", "cluster.yaml"))
	o.Kubectl(t, "apply", "-f", o.Example("outbound", "whereami-ingress.yaml"))
	t.Cleanup(func() {
		o.Kubectl(t, "delete", "-f", o.Example("outbound", "whereami-ingress.yaml"), "--ignore-not-found")
	})
	o.Kubectl(t, "rollout", "status", "deployment/whereami-ingress", "--timeout=120s")
	o.WaitService(t, "default", "whereami-ingress")
	o.WaitService(t, "kube-system", addon+"nginx-ingress")
	expect(t, o.Kubectl(t, "get", "svc", "--all-namespaces"),
		`^default +whereami-ingress +ClusterIP +10\.0\.\d+\.\d+ +<none> +80/TCP `,
		`^kube-system +`+addon+`default-http-backend +ClusterIP +10\.0\.\d+\.\d+ +<none> +80/TCP `,
		`^kube-system +`+addon+`nginx-ingress +LoadBalancer +10\.0\.\d+\.\d+ +203\.0\.113\.\d+ +80:\d+/TCP,443:\d+/TCP `)
	zone := o.Az(t, "aks", "show", "-g", "akstest", "-n", "aksPacketWalkAzure", "--query",
		"addonProfiles.httpApplicationRouting.config.HTTPApplicationRoutingZoneName", "-o", "tsv")
	if "whereami."+strings.TrimSpace(zone) != ingressHost {
		t.Errorf("the cluster's zone is %s", zone)
	}
	pods := podIPs(t, o.World, "-l", "app=whereami-ingress")
	// Every client can resolve the host's name. The pods see the controller's pod as the caller. As the client they see the node whose
	// address replaced the client's.
	answer := sees(t, o.World, "http://"+ingressHost, pods)
	controller := ingressPod(t, o.World)
	if want := (whereami{Private: answer.Private, Caller: controller.Status.PodIP, Host: ingressHost,
		For: controller.Status.HostIP}); answer != want {
		t.Errorf("the pod sees %+v, want %+v", answer, want)
	}
	if out := named(t, o.World, "ubuntu", "curl", "-sS", "--max-time", "3", "http://"+ingressHost); !strings.Contains(out, ingressHost) {
		t.Errorf("a pod is answered %q", out)
	}
	var i networkingv1.Ingress
	o.Get(t, &i, "ingress", "whereami-ingress")
	vip := o.serviceAddress(t, addon+"nginx-ingress")
	if len(i.Status.LoadBalancer.Ingress) != 1 || i.Status.LoadBalancer.Ingress[0].IP != vip {
		t.Errorf("the Ingress has address %v, want %s", i.Status.LoadBalancer.Ingress, vip)
	}
	if out, _ := asks(o.World, "client", "-w", " %{http_code}", "http://"+vip); out != "default backend - 404 404" {
		t.Errorf("another host is answered %q", out)
	}
	eventually.Succeeds(t, 30*time.Second, func() error {
		return matches(o.Kubectl(t, "logs", "-n", "kube-system", controller.Name),
			`^`+regexp.QuoteMeta(controller.Status.HostIP)+
				` - - \[.*\] "GET / HTTP/1\.1" 200 \d+ "-" "curl/.*" \d+ \d+\.\d\d\d \[default-whereami-ingress-80\] \[\] `+
				regexp.QuoteMeta(answer.Private)+`:80 \d+ \d+\.\d\d\d 200 [0-9a-f]{32}$`)
	})
	for _, port := range []string{"80", "443"} {
		expect(t, agrees(t, o.World, "internet", "svc/kube-system/"+addon+"nginx-ingress:"+port),
			`kube-system/`+addon+`nginx-ingress:https?: pod kube-system/`+controller.Name,
			`^the destination sees `+regexp.QuoteMeta(controller.Status.HostIP)+`:`)
	}
	t.Run("certificate", func(t *testing.T) { checkCertificate(t, o, pods) })
	t.Run("changes", func(t *testing.T) { checkFollows(t, o) })
	t.Run("restart", func(t *testing.T) {
		o.Kubectl(t, "delete", "pod", "-n", "kube-system", controller.Name, "--wait=false")
		eventually.Succeeds(t, 60*time.Second, func() error {
			if now := ingressPod(t, o.World); now.Name == controller.Name {
				return errors.New("no other controller yet")
			}
			return nil
		})
		awaitAddon(t, o.World)
		sees(t, o.World, "http://"+ingressHost, podIPs(t, o.World, "-l", "app=whereami-ingress"))
	})
}

func (o *outbound) serviceAddress(t *testing.T, name string) string {
	t.Helper()
	return o.Kubectl(t, "get", "service", "-n", "kube-system", name, "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
}

// checkCertificate: with a TLS entry the host shows the Secret's certificate, and who comes by HTTP is sent to HTTPS.
func checkCertificate(t *testing.T, o *outbound, pods []string) {
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	mint(t, crt, key, ingressHost)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	o.Kubectl(t, "create", "secret", "tls", "whereami", "--cert", crt, "--key", key)
	t.Cleanup(func() { o.Kubectl(t, "delete", "secret", "whereami") })
	o.Kubectl(t, "patch", "ingress", "whereami-ingress", "-p", `{"spec":{"tls":[{"hosts":["`+ingressHost+`"],"secretName":"whereami"}]}}`)
	t.Cleanup(func() { o.Kubectl(t, "patch", "ingress", "whereami-ingress", "-p", `{"spec":{"tls":null}}`) })
	eventually.Succeeds(t, 30*time.Second, func() error {
		out, err := asks(o.World, "client", "-L", "--cacert", crt, "-w", "%{url_effective}", "http://"+ingressHost+"/a?b")
		if err != nil || !strings.HasSuffix(out, "https://"+ingressHost+"/a?b") ||
			!slices.ContainsFunc(pods, func(ip string) bool { return strings.Contains(out, ip) }) {
			return fmt.Errorf("%q, %w", out, err)
		}
		return nil
	})
}

// mint writes a self-signed certificate for a host, and its key.
func mint(t *testing.T, crt, key, host string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "claim B10"}, DNSNames: []string{host}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	der8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{crt: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: der8}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// checkFollows: requests go where the pods are, and get 503 when there are none.
func checkFollows(t *testing.T, o *outbound) {
	scale := func(n int) { o.Kubectl(t, "scale", "deployment/whereami-ingress", fmt.Sprint("--replicas=", n)) }
	scale(0)
	eventually.Succeeds(t, 30*time.Second, func() error {
		if out, err := asks(o.World, "client", "-o", "/dev/null", "-w", "%{http_code}", "http://"+ingressHost); out != "503" {
			return fmt.Errorf("without pods %q, %w", out, err)
		}
		return nil
	})
	scale(1)
	o.Kubectl(t, "rollout", "status", "deployment/whereami-ingress", "--timeout=120s")
	sees(t, o.World, "http://"+ingressHost, podIPs(t, o.World, "-l", "app=whereami-ingress"))
}
