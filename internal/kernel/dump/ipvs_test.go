package dump

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestIPVS reads what the kernel prints of IPVS' services (net/netfilter/ipvs/ip_vs_ctl.c: ip_vs_info_seq_show).
func TestIPVS(t *testing.T) {
	const head = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n" +
		"  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	for _, c := range []struct{ text, want string }{
		{head, "null"},
		{head + "TCP  0A60000A:0035 rr \n  -> 0AF40002:0035      Masq    1      0          0         \n" +
			"UDP  0A60000A:0035 rr ops persistent 10800 FFFFFFFF\n",
			`[{"protocol":6,"local":"10.96.0.10:53"},{"protocol":17,"local":"10.96.0.10:53"}]`},
		{head + "TCP  [fd00:0010:0000:0000:0000:0000:0000:000a]:1F90 sh \n" +
			"  -> [fd00:0020:0000:0000:0000:0000:0000:0002]:1F90      Masq    1      0          0         \nSCTP  0A60000B:0000 none \n",
			`[{"protocol":6,"local":"[fd00:10::a]:8080"},{"protocol":132,"local":"10.96.0.11:0"}]`},
		{head + "FWM  000003E8 wlc ops \n", `[{"mark":1000}]`},
	} {
		all, err := parseIPVS(c.text)
		if got, _ := json.Marshal(all); err != nil || string(got) != c.want {
			t.Errorf("%s: %s, %v", c.text, got, err)
		}
	}
	for _, text := range []string{"TCP\n", "TCP 0A60000A rr\n", "TCP 0A60:0035 rr\n", "TCP [fd00]:0035 rr\n", "TCP 0A60000A:10035 rr\n", "ODD 0A60000A:0035 rr\n",
		"FWM xyz rr\n", "IP_300 0A60000A:0035\n"} {
		if _, err := parseIPVS(text); err == nil || !strings.Contains(err.Error(), "is no service") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
