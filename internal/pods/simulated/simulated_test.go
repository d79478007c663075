package simulated

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/base/serve"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/testing/kerneltest"
)

func testPod(ports ...corev1.ContainerPort) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "1-2-3"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx", Ports: ports}}}}
}

// served starts a pod's listeners in a namespace of their own.
func served(t *testing.T) *netns.Namespace {
	kerneltest.NeedRoot(t)
	space, err := netns.Create(filepath.Join(t.TempDir(), "pod"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = space.Remove() })
	s, err := listenFor(t.Context(), space, testPod(corev1.ContainerPort{ContainerPort: 80},
		corev1.ContainerPort{ContainerPort: 53, Protocol: corev1.ProtocolUDP}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return space
}

// TestServers: a declared port answers HTTP requests as whereami does, and sends back anything else.
func TestServers(t *testing.T) {
	space := served(t)
	client := http.Client{Transport: &http.Transport{DialContext: space.Dial}, Timeout: 5 * time.Second}
	answer, err := client.Get("http://127.0.0.1/hello?x=%0a")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var is struct {
		Hostname string `json:"hostname"`
		Path     string `json:"path_accessed"`
		Port     int    `json:"my_port"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&is); err != nil || is.Hostname != "web-0" || is.Path != "/hello?x=%0a" || is.Port != 80 {
		t.Errorf("%+v, %v", is, err)
	}
	for network, port := range map[string]string{"tcp": "80", "udp": "53"} {
		conn, err := space.Dial(t.Context(), network, "127.0.0.1:"+port)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprint(conn, "hi\n") // shorter than any method of HTTP
		if line, err := bufio.NewReader(conn).ReadString('\n'); line != "hi\n" {
			t.Errorf("%s: %q, %v", network, line, err)
		}
	}
}

// TestServersAreBounded: a pod answers beside a crowd of idle connections, the oldest of which it closes, whatever they said.
func TestServersAreBounded(t *testing.T) {
	for name, text := range map[string]string{"silent": "", "half head": "GET / HT", "kept alive": "GET / HTTP/1.1\r\nHost: a\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			space := served(t)
			dial := func(text string) net.Conn {
				conn, err := space.Dial(t.Context(), "tcp", "127.0.0.1:80")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				_, _ = io.WriteString(conn, text) // the pod may have closed it
				return conn
			}
			first := dial(text)
			if strings.HasSuffix(text, "\r\n\r\n") { // it is idle when it was answered
				answer, err := http.ReadResponse(bufio.NewReader(first), nil)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
			}
			for range serve.MaxOfPeer {
				dial(text)
			}
			echo := dial("hi")
			if _, err := io.ReadFull(echo, make([]byte, 2)); err != nil {
				t.Errorf("beside the crowd: %v", err)
			}
			_ = first.SetDeadline(time.Now().Add(10 * time.Second)) // the crowd may have taken longer
			if _, err := io.Copy(io.Discard, first); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the oldest connection is still open")
			}
		})
	}
}

func TestSpeaksHTTP(t *testing.T) {
	for text, want := range map[string]bool{"GET / HTTP/1.1": true, "PATCH /": true, "G": true, "": true, "G\n": false, "GETX": false,
		"hi\n": false, "\x16\x03\x01": false} {
		if got := speaksHTTP(text); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestStatus: a pod whose ports are open runs and is ready, and what others set in its status stays.
func TestStatus(t *testing.T) {
	o := testPod()
	o.Spec.InitContainers = []corev1.Container{{Name: "first"}, {Name: "sidecar", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)}}
	o.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "mine"}}
	o.Status.QOSClass = corev1.PodQOSBestEffort
	p := &pod{uid: o.UID, ips: []string{"10.0.0.7"}, since: time.Now()}
	host := netip.MustParseAddr("10.0.0.1")
	condition := func(s corev1.PodStatus, t corev1.PodConditionType) string {
		for _, c := range s.Conditions {
			if c.Type == t {
				return string(c.Status)
			}
		}
		return ""
	}
	s := running(o, host, p)
	if s.Phase != corev1.PodRunning || s.PodIP != "10.0.0.7" || s.HostIP != "10.0.0.1" || s.QOSClass != corev1.PodQOSBestEffort ||
		condition(s, corev1.PodReady) != "False" || condition(s, corev1.ContainersReady) != "True" {
		t.Errorf("%+v", s)
	}
	if i := s.InitContainerStatuses; i[0].State.Terminated == nil || i[1].State.Running == nil {
		t.Errorf("%+v", i)
	}
	o.Status.Conditions = []corev1.PodCondition{{Type: "mine", Status: corev1.ConditionTrue}}
	if s = running(o, host, p); condition(s, corev1.PodReady) != "True" || condition(s, "mine") != "True" {
		t.Errorf("%+v", s.Conditions)
	}
	o.Status = s
	s = over(o, time.Now())
	if s.Phase != corev1.PodSucceeded || s.ContainerStatuses[0].State.Terminated == nil || condition(s, corev1.PodReady) != "False" {
		t.Errorf("%+v", s)
	}
	if s = waiting(testPod(), host); s.Phase != corev1.PodPending || s.ContainerStatuses[0].State.Waiting == nil {
		t.Errorf("%+v", s)
	}
}

// TestUnsupported: what has no effect is named, and what every pod has is not.
func TestUnsupported(t *testing.T) {
	o := testPod(corev1.ContainerPort{ContainerPort: 80})
	token := corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{}}
	o.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-x", VolumeSource: token}}
	if got := Unsupported(o); got != "" {
		t.Error(got)
	}
	o.Spec.Volumes = append(o.Spec.Volumes, corev1.Volume{Name: "kube-api-access-y"})
	o.Spec.Containers[0].Args = []string{"x"}
	o.Spec.Containers[0].LivenessProbe = &corev1.Probe{}
	o.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "b"}}
	o.Spec.HostPID, o.Spec.RestartPolicy = true, corev1.RestartPolicyNever
	if got := Unsupported(o); !strings.Contains(got, "Without effect: commands, environment variables, volumes, probes, hostPID and hostIPC, "+
		"restartPolicy (the pod runs until it is deleted).") {
		t.Error(got)
	}
}

// TestReadConfig: a configuration that cannot be used is an error that says what is wrong.
func TestReadConfig(t *testing.T) {
	for text, want := range map[string]string{"{": "unexpected end", `{"node":{"metadata":{"name":"n"}}}`: "no name, or no InternalIP", "{}": "no name"} {
		file := filepath.Join(t.TempDir(), "config.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadConfig(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
