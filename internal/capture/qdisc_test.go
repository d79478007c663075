package capture_test

import (
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/snapshot"
)

// TestQdiscs: links get the qdiscs and filters whose effect on a packet is unknown, and no others.
func TestQdiscs(t *testing.T) {
	for text, want := range map[string]struct{ in, out string }{
		`[]`: {},
		`[{"link":"eth0","kind":"fq_codel","handle":"0:","parent":"root","settings":{"limit":10240,"memory_limit":33554432}}]`: {},
		`[{"link":"eth0","kind":"fq","handle":"0:","parent":"root","settings":{"limit":10000,"flow_limit":0}}]`:                {out: "qdisc fq 0: (root, flow_limit 0)"},
		`[{"link":"eth0","kind":"fq","handle":"0:","parent":"root"}]`:                                                          {out: "qdisc fq 0: (root, limit unknown)"},
		`[{"link":"eth0","kind":"cake","handle":"1:","parent":"root","settings":{"wash":0}}]`:                                  {},
		`[{"link":"eth0","kind":"cake","handle":"1:","parent":"root","settings":{"wash":1}}]`:                                  {out: "qdisc cake 1: (root, wash 1)"},
		`[{"link":"eth0","kind":"netem","handle":"1:","parent":"root"}]`:                                                       {out: "qdisc netem 1: (root)"},
		`[{"link":"eth0","kind":"acme","handle":"1:","parent":"root"}]`:                                                        {out: "qdisc acme 1: (root)"},
		`[{"link":"eth9","kind":"netem","handle":"1:","parent":"root"}]`:                                                       {},
		`[{"link":"eth0","kind":"mq","handle":"8:","parent":"root"},{"link":"eth0","kind":"netem","handle":"0:","parent":"8:1"}]`: {
			out: "qdisc netem 0: (parent 8:1)"},
		`[{"link":"eth0","kind":"clsact","handle":"ffff:","parent":"ffff:fff1","filters":[
			{"filter":"bpf","parent":"ffff:fff2","pref":1,"program":{"attach":"tc","id":7,"name":"x"}},{"filter":"u32","parent":"ffff:fff3","pref":2,"out":true}]}]`: {
			in: "BPF program x (id 7, tc)", out: "filter u32 (preference 2, parent ffff:fff3) of qdisc clsact ffff:"},
	} {
		raw := &capture.Raw{Outputs: map[string]capture.Output{
			"ip-link.json":       {Data: []byte(`[{"ifindex":2,"ifname":"eth0","flags":["UP"]}]`)},
			capture.AttachedFile: {Data: []byte(`[]`)},
			capture.QdiscsFile:   {Data: []byte(text)},
		}}
		host := capture.NewLoader("node/a").Load(raw)
		if l := host.FIB.Link("eth0"); l == nil || l.Program != want.in || l.ProgramOut != want.out {
			t.Errorf("%s:\n%+v, want %+v", text, l, want)
		}
		if why, missing := host.Missing[snapshot.Programs]; missing {
			t.Errorf("missing: %s", why)
		}
	}
}

// TestWithoutQdiscs: a capture of an older version is read. That it says nothing of qdiscs is noted.
func TestWithoutQdiscs(t *testing.T) {
	raw := &capture.Raw{Outputs: map[string]capture.Output{
		"ip-link.json":       {Data: []byte(`[{"ifindex":2,"ifname":"eth0","flags":["UP"]}]`)},
		capture.AttachedFile: {Data: []byte(`[{"link":"eth0","out":true,"what":"a filter of tc (u32)"}]`)},
	}}
	host := capture.NewLoader("node/a").Load(raw)
	if _, missing := host.Missing[snapshot.Programs]; !missing || host.FIB.Link("eth0").ProgramOut != "a filter of tc (u32)" {
		t.Errorf("missing %v, unread %v, link %+v", host.Missing, host.Unread, host.FIB.Link("eth0"))
	}
}
