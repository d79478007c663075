package redact_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/capture/redact"
	"packetwalk.dev/internal/testing/capturetest"
)

// withOriginals redacts a capture, and returns what it becomes and the text of a map.
func withOriginals(t *testing.T, c *capturetest.Content) (*capturetest.Content, []byte) {
	t.Helper()
	head, origin, originals, err := redact.Capture(c.Head, c.Origin(), book, testKey)
	if err != nil {
		t.Fatal(err)
	}
	after := taken(t, head, origin)
	text, err := json.Marshal(originals)
	if err != nil {
		t.Fatal(err)
	}
	return after, text
}

func taken(t *testing.T, head capture.Head, origin capture.Origin) *capturetest.Content {
	t.Helper()
	var file bytes.Buffer
	if _, err := capture.Take(t.Context(), origin, &file, head); err != nil {
		t.Fatal(err)
	}
	read, err := capturetest.Read(file.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// hard has what is replaced in its own way: beginnings of links' names, ranges, prefixes whose inside stays, names in comments.
func hard() *capturetest.Content {
	c := small()
	c.Hosts[0].Machine = "n1"
	c.Hosts[0].Outputs["ip-link.json"] = capture.Output{Data: []byte(`[{"ifindex":1,"ifname":"lo","flags":["UP"]},` +
		`{"ifindex":2,"ifname":"acme0","address":"02:00:5e:10:00:01","flags":["UP"]},{"ifindex":3,"ifname":"azvacme7","flags":["UP"]},` +
		`{"ifindex":4,"ifname":"eth0.7","flags":["UP"]}]`)}
	c.Hosts[0].Outputs["sysctls.txt"] = capture.Output{Data: []byte("net.ipv4.conf.eth0/7.rp_filter = 1\nnet.ipv4.conf.acme0.forwarding = 1\n")}
	c.Hosts[0].Outputs["ipset-save.txt"] = capture.Output{Data: []byte("create acme hash:net,iface\nadd acme 10.1.0.0/16,acme0\n")}
	c.Hosts[0].Outputs["iptables-save.txt"] = capture.Output{Data: []byte("*nat\n:PREROUTING ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:ACME - [0:0]\n" +
		"-A PREROUTING -d 172.16.8.0/24 -i acme+ -j NETMAP --to 10.9.8.0/24\n-A PREROUTING -i azvac+ -j ACME\n" +
		"-A ACME -s 203.0.113.0/25 -m comment --comment \"acme/web:http of acme at 203.0.113.0/25\" -j RETURN\n" +
		"-A POSTROUTING -m iprange --src-range 10.0.0.0-10.12.255.255 -o acme0 -j SNAT --to-source 198.51.100.3-198.51.100.6\n" +
		"-A ACME -m u32 --u32 0xc=0xa010203 -m helper --helper acme -j LOG --log-prefix \"acme: \"\n" +
		"-A ACME -m string --algo bm --string -acme -m newmodule --strange 4711 \"acme corp\" -j RETURN\nCOMMIT\n")}
	c.Lists["pods.json"] = []byte(`{"items":[{"metadata":{"namespace":"acme","name":"web-5f-x","labels":{"pod-template-hash":"5f","app":"acme"},"ownerReferences":[` +
		`{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-5f","controller":true}]},"spec":{"nodeName":"n1","runtimeClassName":"sealed"},"status":{"podIPs":[{"ip":"10.1.0.9"}]}}]}`)
	c.Lists[capture.NetworkPoliciesFile] = []byte(`{"items":[{"metadata":{"namespace":"acme","name":"p"},"spec":{"podSelector":{"matchLabels":{"app":"acme"}},"policyTypes":["Ingress"]}}]}`)
	c.Lists[capture.RuntimeClassesFile] = []byte(`{"items":[{"metadata":{"name":"sealed"},"handler":"acmevm"}]}`)
	return c
}

// TestRestore shows that a redacted capture with its originals is the capture: redacted again with the same key, it is the same to the byte.
func TestRestore(t *testing.T) {
	for name, c := range map[string]*capturetest.Content{"world": capturetest.Open(t, worldA), "hard": hard()} {
		t.Run(name, func(t *testing.T) {
			after, originals := withOriginals(t, c)
			head, origin, err := redact.Restore(after.Head, after.Origin(), book, originals)
			if err != nil || head.Redacted {
				t.Fatalf("%+v, %v", head, err)
			}
			restored := taken(t, head, origin)
			again := redacted(t, restored)
			if len(again.Hosts) != len(after.Hosts) || len(again.Lists) != len(after.Lists) {
				t.Errorf("%d hosts and %d lists, want %d and %d", len(again.Hosts), len(again.Lists), len(after.Hosts), len(after.Lists))
			}
			for i, h := range after.Hosts {
				if again.Hosts[i].Name != h.Name || again.Hosts[i].Machine != h.Machine {
					t.Errorf("host %s on %s, want %s on %s", again.Hosts[i].Name, again.Hosts[i].Machine, h.Name, h.Machine)
				}
				for file, o := range h.Outputs {
					if got := again.Hosts[i].Outputs[file]; !bytes.Equal(got.Data, o.Data) || got.Error != o.Error {
						t.Errorf("%s %s:\n%s\nwant\n%s\nrestored\n%s", h.Name, file, got.Data, o.Data, restored.Hosts[i].Outputs[file].Data)
					}
				}
			}
			for file, list := range after.Lists {
				if got := again.Lists[file]; !bytes.Equal(got, list) {
					t.Errorf("%s:\n%s\nwant\n%s", file, got, list)
				}
			}
			if name == "hard" {
				text := string(restored.Hosts[0].Outputs["iptables-save.txt"].Data)
				for _, want := range []string{"-d 172.16.8.0/24 -i acme+", "--to 10.9.8.0/24", "-i azvac+ -j ACME", "-s 203.0.113.0/25",
					`"acme/web:http of acme at 203.0.113.0/25"`, "-o acme0 -m iprange --src-range 10.0.0.0-10.12.255.255", "198.51.100.3-198.51.100.6",
					"-m u32 --u32 0xc=0xa010203", "--helper acme", `--log-prefix "acme: "`, "--string -acme", `--strange 4711 "acme corp" -j RETURN`} {
					if !strings.Contains(text, want) {
						t.Errorf("no %s in\n%s", want, text)
					}
				}
			}
		})
	}
}

// TestRestoreRefuses shows that a map of another capture, of less, or of something else is an error and no walk.
func TestRestoreRefuses(t *testing.T) {
	after, originals := withOriginals(t, hard())
	_, other := withOriginals(t, small())
	var whole map[string]map[string]string
	if err := json.Unmarshal(originals, &whole); err != nil {
		t.Fatal(err)
	}
	without := func(part string, match func(replaced, original string) bool) []byte {
		less := map[string]map[string]string{}
		for name, all := range whole {
			less[name] = map[string]string{}
			for replaced, original := range all {
				if name != part || !match(replaced, original) {
					less[name][replaced] = original
				}
			}
		}
		text, err := json.Marshal(less)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	with := func(original string) []byte {
		return bytes.Replace(without("", nil), []byte(`:"n1"`), []byte(`:"`+original+`"`), 1)
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"of another":      {other, "no original of"},
		"no prefix":       {without("names", func(_, original string) bool { return original == "acme" }), "no original of"},
		"no address":      {without("addresses", func(_, original string) bool { return strings.HasPrefix(original, "203.0.113.") }), "no original of"},
		"end of a range":  {without("addresses", func(_, original string) bool { return original == "10.12.255.255" }), "no original of"},
		"no class":        {without("names", func(replaced, _ string) bool { return strings.HasPrefix(replaced, "class-") }), "no original of"},
		"no handler":      {without("names", func(replaced, _ string) bool { return strings.HasPrefix(replaced, "handler-") }), "no original of"},
		"no pod":          {without("names", func(replaced, _ string) bool { return strings.HasPrefix(replaced, "pod-") }), "no original of"},
		"empty":           {nil, "unexpected end of JSON"},
		"another file":    {[]byte(`{"kind":"List"}`), "it is not what 'capture --redact --map' writes"},
		"bad address":     {[]byte(`{"addresses":{"10.0.0.1":"ten"}}`), "read address"},
		"family":          {[]byte(`{"addresses":{"10.0.0.1":"fd00::1"}}`), "different address families"},
		"bad MAC address": {[]byte(`{"names":{"a":"b"},"macs":{"02:00:00:00:00:01":"x"}}`), "read MAC address"},
		"path":            {with("../../etc"), "invalid name of a host"},
		"control":         {with(`\u001b[2J`), "invalid name of a host"},
	} {
		t.Run(name, func(t *testing.T) {
			_, origin, err := redact.Restore(after.Head, after.Origin(), book, c.text)
			if err == nil {
				_, err = origin.Fetch(slices.Sorted(maps.Keys(origin.Hosts))[0])
			}
			if err == nil {
				_, err = origin.Lists()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v", err)
			}
		})
	}
	plain := hard()
	if _, _, err := redact.Restore(plain.Head, plain.Origin(), book, originals); err == nil || !strings.Contains(err.Error(), "not redacted") {
		t.Errorf("error %v", err)
	}
}
