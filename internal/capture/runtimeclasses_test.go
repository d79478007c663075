package capture_test

import (
	"testing"

	"packetwalk.dev/internal/capture"
)

// TestSandbox: a pod whose runtime class has a handler that is not known to use the node's kernel runs in a sandbox.
func TestSandbox(t *testing.T) {
	const classes = `{"items":[{"metadata":{"name":"gvisor"},"handler":"runsc"},{"metadata":{"name":"fast"},"handler":"crun"},` +
		`{"metadata":{"name":"gpu"},"handler":"nvidia-cdi"},{"metadata":{"name":"nvidia"},"handler":"kata-qemu-nvidia-gpu"}]}`
	for class, want := range map[string]string{
		"": "", "fast": "", "gpu": "", "gvisor": "runtimeClassName gvisor, handler runsc",
		"nvidia": "runtimeClassName nvidia, handler kata-qemu-nvidia-gpu", "other": "runtimeClassName other, whose handler is unknown",
	} {
		pods := `{"items":[{"metadata":{"namespace":"shop","name":"web"},"spec":{"nodeName":"n","runtimeClassName":"` + class + `"}}]}`
		source := capture.NewSource(capture.Origin{
			Hosts: map[string]capture.NetNS{"pod/shop/web": {}, "node/n": {}},
			Fetch: func(name string) (*capture.Raw, error) { return &capture.Raw{Name: name}, nil },
			Lists: func() (map[string][]byte, error) {
				return map[string][]byte{"pods.json": []byte(pods), capture.RuntimeClassesFile: []byte(classes)}, nil
			},
		})
		for host, want := range map[string]string{"pod/shop/web": want, "node/n": ""} {
			h, err := source.Host(host)
			if err != nil {
				t.Fatal(err)
			}
			if h.Sandbox != want {
				t.Errorf("class %q: %s has sandbox %q, want %q", class, host, h.Sandbox, want)
			}
		}
	}
}

// TestSandboxWithoutClass: a pod whose address is not in its network namespace has it in another stack.
func TestSandboxWithoutClass(t *testing.T) {
	for addresses, want := range map[string]string{
		`[]`: "its address is not in its network namespace",
		`[{"ifname":"eth0","addr_info":[{"family":"inet","local":"10.1.0.5","prefixlen":24}]}]`: "",
	} {
		const pods = `{"items":[{"metadata":{"namespace":"shop","name":"web"},"status":{"podIPs":[{"ip":"10.1.0.5"}]}}]}`
		source := capture.NewSource(capture.Origin{
			Hosts: map[string]capture.NetNS{"pod/shop/web": {}},
			Fetch: func(name string) (*capture.Raw, error) {
				return &capture.Raw{Name: name, Outputs: map[string]capture.Output{"ip-address.json": {Data: []byte(addresses)}}}, nil
			},
			Lists: func() (map[string][]byte, error) { return map[string][]byte{"pods.json": []byte(pods)}, nil },
		})
		if h, err := source.Host("pod/shop/web"); err != nil || h.Sandbox != want {
			t.Errorf("%s: sandbox %q, %v, want %q", addresses, h.Sandbox, err, want)
		}
	}
}
