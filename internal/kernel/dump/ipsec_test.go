package dump

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/testing/kerneltest"
)

// TestIPsec: policies that keep a packet from going on as it is are read from the kernel; those that let all pass are not among them.
func TestIPsec(t *testing.T) {
	kerneltest.NeedRoot(t)
	ns := ofTest(t)
	dump := func() string {
		raw, err := new(Dumper).Parts(t.Context(), "node/a", ns, snapshot.IPsec)
		if err != nil {
			t.Fatal(err)
		}
		host := capture.NewLoader("node/a").Load(raw)
		if why := host.Unread[snapshot.IPsec]; why != "" {
			t.Fatal(why)
		}
		text, _ := json.Marshal(host.IPsec)
		return string(text)
	}
	if got := dump(); got != "null" && got != "[]" {
		t.Errorf("of a new namespace: %s", got)
	}
	cmd := exec.Command("sh", "-ec", `ip xfrm policy add src 10.1.0.0/16 dst 10.2.0.0/16 dir out priority 9 \
			tmpl src 10.0.0.1 dst 10.0.0.2 proto esp mode tunnel
		ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 proto 6 dir fwd tmpl src 10.0.0.2 dst 10.0.0.1 proto esp mode tunnel
		ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in tmpl src 10.0.0.2 dst 10.0.0.1 proto esp mode tunnel level use
		ip xfrm policy add src 10.3.0.0/16 dst 10.1.0.0/16 dir in action block
		ip xfrm policy add src 10.1.0.0/16 dst 10.2.9.0/24 dir out priority 1
		ip xfrm policy add src fd00::/64 dst fd01::/64 dir out mark 0x3e00 mask 0xff00 tmpl proto esp mode transport
		ip xfrm policy add src ::/0 dst ::/0 dir out if_id 7 tmpl proto esp mode transport`)
	cmd.Stderr = os.Stderr
	if err := ns.Do(cmd.Run); err != nil {
		t.Fatal(err)
	}
	var got []snapshot.IPsecPolicy
	if err := json.Unmarshal([]byte(dump()), &got); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, p := range got {
		all[p.String()] = true
	}
	for _, want := range []string{"out 10.1.0.0/16 > 10.2.0.0/16", "fwd tcp 10.2.0.0/16 > 10.1.0.0/16", "in 10.3.0.0/16 > 10.1.0.0/16",
		"out fd00::/64 > fd01::/64 mark 0x3e00/0xff00"} {
		if !all[want] || len(got) != 4 {
			t.Errorf("no %s: %v", want, got)
		}
	}
}
