package packet

import "testing"

// FuzzParseNames: a protocol and a link-layer address print as something that is read as the same.
func FuzzParseNames(f *testing.F) {
	for _, s := range []string{"tcp", "icmp6", "255", "256", "00", "00:11:22:33:44:55", "0011.2233.4455", "00-11-22-33-44-55"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParseProtocol(s); err == nil {
			if again, err := ParseProtocol(p.String()); err != nil || again != p {
				t.Errorf("%q is %d, prints as %s and is read again as %d, %v", s, uint8(p), p, uint8(again), err)
			}
		}
		if m, err := ParseMAC(s); err == nil {
			if again, err := ParseMAC(m.String()); err != nil || again != m {
				t.Errorf("%q prints as %s and is read again as %s, %v", s, m, again, err)
			}
		}
	})
}
