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
				"--timeout=60s")
			return err
		})
	}
}

// ingressPod is the controller's pod that runs.
func ingressPod(t *testing.T, w *world.World) (pod corev1.Pod) {
	t.Helper()
	eventually.Succeeds(t, 60*time.Second, func() error {
		var pods corev1.PodList
		w.Get(t, &pods, "pod", "-n", "kube-system", "-l", addonLabel)
		if i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil && p.Status.PodIP != "" }); i >= 0 {
			pod = pods.Items[i]
			return nil
		}
		return errors.New("no controller runs")
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
	var pods corev1.PodList
	w.Get(t, &pods, append([]string{"pod"}, args...)...)
	for _, p := range pods.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning {
			ips = append(ips, p.Status.PodIP)
		}
	}
	return ips
}

// TestB10: the addon is added to a cluster that runs, as the article does.
func TestB10(t *testing.T) {
	o := outboundWorld(t)
	enableAddon(t, o.World, o.Example("outbound", "cluster.yaml"))
	o.Kubectl(t, "apply", "-f", o.Example("outbound", "whereami-ingress.yaml"))
	t.Cleanup(func() {
		o.Kubectl(t, "delete", "-f", o.Example("outbound", "whereami-ingress.yaml"), "--ignore-not-found")
	})
	o.Kubectl(t, "rollout", "status", "deployment/whereami-ingress", "--timeout=60s")
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
	// The host is a name for everybody; the pods see the controller's pod, and the node that the client's address became as the client.
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
	expect(t, o.Kubectl(t, "logs", "-n", "kube-system", controller.Name),
		`^`+regexp.QuoteMeta(controller.Status.HostIP)+
			` - - \[.*\] "GET / HTTP/1\.1" 200 \d+ "-" "curl/.*" \d+ 0\.\d\d\d \[default-whereami-ingress-80\] \[\] `+
			regexp.QuoteMeta(answer.Private)+`:80 \d+ 0\.\d\d\d 200 [0-9a-f]{32}$`)
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
	eventually.Succeeds(t, 10*time.Second, func() error {
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
	o.Kubectl(t, "rollout", "status", "deployment/whereami-ingress", "--timeout=60s")
	sees(t, o.World, "http://"+ingressHost, podIPs(t, o.World, "-l", "app=whereami-ingress"))
}

// kuardHost is the host of examples/virtual-node/kuard-vnode-ingress.yaml.
const kuardHost = "kuard-ingress.c18f41e21f17e33d504f.westeurope.aksapp.io"

// requestAddr is where kuard's page says that a request came from.
var requestAddr = regexp.MustCompile(`"requestAddr":"([0-9.]+):\d+"`)

// TestE9: from the ingress controller's pod, in the article's way: to a pod on the same machine and on the virtual node, and when a second
// machine has joined, to one there.
func TestE9(t *testing.T) {
	const second = "aks-nodepool1-26711606-1"
	w := vnodeWorld(t).World
	enableAddon(t, w, w.Example("virtual-node", "cluster.yaml"))
	w.Kubectl(t, "apply", "-f", w.Example("virtual-node", "kuard-vnode-ingress.yaml"))
	t.Cleanup(func() {
		w.Kubectl(t, "delete", "-f", w.Example("virtual-node", "kuard-vnode-ingress.yaml"), "--ignore-not-found")
	})
	controller := ingressPod(t, w)
	if controller.Spec.NodeName != vnodeNode {
		t.Fatalf("the controller runs on %s", controller.Spec.NodeName)
	}
	whose := map[string]string{vnodeNode: controller.Status.PodIP, virtualNode: controller.Status.HostIP}
	checkSources(t, w, &controller, kuardPods(t, w, vnodeNode, virtualNode), whose)
	// By the Ingress it is the same, and kuard sees the host that the client asked for.
	seen := map[string]bool{}
	eventually.Succeeds(t, 20*time.Second, func() error {
		out, err := asks(w, "client", "http://"+kuardHost)
		m := requestAddr.FindStringSubmatch(out)
		if m == nil || !strings.Contains(out, kuardHost) {
			return fmt.Errorf("%w: %.500s", err, out)
		}
		if seen[m[1]] = true; len(seen) < 2 {
			return fmt.Errorf("requests came from %v only", seen)
		}
		return nil
	})
	if !seen[controller.Status.PodIP] || !seen[controller.Status.HostIP] {
		t.Errorf("requests came from %v", seen)
	}
	expect(t, w.SSH(t, vnodeNode, "conntrack", "-L", "-s", controller.Status.PodIP),
		`^tcp .* src=`+regexp.QuoteMeta(controller.Status.PodIP)+
			` dst=10\.13\.100\.\d+ sport=\d+ dport=8080 src=10\.13\.100\.\d+ dst=10\.13\.76\.4 sport=8080 `)

	w.Az(t, "aks", "scale", "-c", "2")
	t.Cleanup(func() { w.Az(t, "aks", "scale", "-c", "1") })
	whose[second] = controller.Status.PodIP
	w.Kubectl(t, "cordon", vnodeNode) // the pod that is deleted goes to the machine that is new
	w.Kubectl(t, "delete", "pod", "-n", "ingress", "--field-selector", "spec.nodeName="+vnodeNode)
	pods := kuardPods(t, w, second, virtualNode)
	w.Kubectl(t, "uncordon", vnodeNode)
	checkSources(t, w, &controller, pods, whose)
}

// kuardPods waits for a ready pod on each of these nodes.
func kuardPods(t *testing.T, w *world.World, nodes ...string) (pods []corev1.Pod) {
	t.Helper()
	eventually.Succeeds(t, 60*time.Second, func() error {
		var all corev1.PodList
		w.Get(t, &all, "pod", "-n", "ingress")
		pods = nil
		on := map[string]bool{}
		for _, p := range all.Items {
			ready := slices.ContainsFunc(p.Status.Conditions,
				func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
			if p.DeletionTimestamp == nil && ready {
				pods, on[p.Spec.NodeName] = append(pods, p), true
			}
		}
		for _, n := range nodes {
			if !on[n] || len(on) != len(nodes) {
				return fmt.Errorf("pods are ready on %v, want %v", on, nodes)
			}
		}
		return nil
	})
	return pods
}

// checkSources asks each pod from the controller's pod and compares the address that the pod sees with what is to be seen on its node, and
// the walk with the kernel.
func checkSources(t *testing.T, w *world.World, controller *corev1.Pod, pods []corev1.Pod, whose map[string]string) {
	t.Helper()
	for _, p := range pods {
		out := w.Kubectl(t, "exec", "-n", "kube-system", controller.Name, "--", "curl", "-s4", "--max-time", "5", p.Status.PodIP+":8080")
		if m := requestAddr.FindStringSubmatch(out); m == nil || m[1] != whose[p.Spec.NodeName] {
			t.Errorf("the pod on %s is asked by %q, want %s", p.Spec.NodeName, m, whose[p.Spec.NodeName])
		}
		because := `^the destination sees the sender's own address, ` + regexp.QuoteMeta(controller.Status.PodIP) + `:`
		if whose[p.Spec.NodeName] != controller.Status.PodIP {
			because = `^the destination sees ` + regexp.QuoteMeta(controller.Status.HostIP) + `:.* because nat cali-nat-outgoing 1: MASQUERADE `
		}
		expect(t, agrees(t, w, "pod/kube-system/"+controller.Name, "pod/ingress/"+p.Name+":8080"), because)
	}
}
