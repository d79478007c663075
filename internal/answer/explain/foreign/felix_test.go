package foreign

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestFelixAlways compares felixAlways with what felix wrote.
func TestFelixAlways(t *testing.T) {
	for release, other := range map[string]string{"3.27": "-A POSTROUTING ", "3.31": "-I POSTROUTING "} {
		t.Run(release, func(t *testing.T) {
			text, err := os.ReadFile("testdata/felix-nat-" + release + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for line := range strings.Lines(felixAlways) {
				if strings.HasPrefix(line, other) {
					continue
				}
				if n++; !strings.Contains(string(text), strings.Replace(line, "-I ", "-A ", 1)) {
					t.Errorf("felix has no %s", line)
				}
			}
			if n < 7 {
				t.Errorf("%d lines", n)
			}
		})
	}
}

// TestPolicyRules: rules are numbered as the policy has them, also those that felix writes in several parts.
func TestPolicyRules(t *testing.T) {
	const accept, pass, deny = "-j MARK --set-xmark 0x10000/0x10000", "-j MARK --set-xmark 0x20000/0x20000", "-j MARK --set-xmark 0x40000/0x40000"
	const drop, flowLog = "-m mark --mark 0x40000/0x40000 -j DROP", "-m mark --mark 0x40000/0x40000 -j NFLOG --nflog-group 1"
	for name, test := range map[string]struct {
		chain []string
		want  []int
		of    int
	}{
		"3.31":             {[]string{"-p tcp " + accept, "-s 10.0.0.0/8 " + deny, drop, "-p udp " + pass, "-p udp -j LOG --log-prefix x"}, []int{1, 2, 2, 3, 4}, 4},
		"with flow logs":   {[]string{"-p tcp " + deny, flowLog, drop, accept}, []int{1, 1, 1, 2}, 2},
		"of several parts": {[]string{"-p tcp " + accept, "-j MARK --set-xmark 0x80000/0x180000", "-s 10.0.0.0/8 -j MARK --set-xmark 0x0/0x80000", accept}, []int{1, 2, 2, 2}, 2},
		"3.27":             {[]string{"-s 10.0.0.1/32 -j DROP", "-j MARK --set-xmark 0x40000/0x40000", "-m mark --mark 0x40000/0x40000 " + accept, "-m mark --mark 0x10000/0x10000 -j RETURN"}, []int{1, 2, 2, 2}, 2},
		"nftables": {[]string{"ip saddr 10.0.0.1 counter packets 0 bytes 0 meta mark set meta mark | 0x00040000", "meta mark & 0x00040000 == 0x00040000 counter packets 0 bytes 0 drop",
			"counter packets 0 bytes 0 meta mark set meta mark | 0x00010000", "meta mark & 0x00010000 == 0x00010000 counter packets 0 bytes 0 return"}, []int{1, 1, 2, 2}, 2},
		"without rules": {[]string{`-m comment --comment "Policy a/b ingress"`}, []int{0}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if numbers, of := PolicyRules(test.chain); !slices.Equal(numbers, test.want) || of != test.of {
				t.Errorf("%d of %d, want %d of %d", numbers, of, test.want, test.of)
			}
		})
	}
}
