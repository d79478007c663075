package dump

import (
	"slices"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/node/conflict"
	"packetwalk.dev/internal/testing/netnstest"
)

// TestAgents reads the role that packetwalk-node takes, in its namespace and no other.
func TestAgents(t *testing.T) {
	ns, other := netnstest.Pair(t)
	if found, err := Agents(ns); err != nil || len(found) > 0 {
		t.Fatalf("before: %q, %v", found, err)
	}
	if err := ns.Do(func() error { return conflict.Take(conflict.ServiceProxy) }); err != nil {
		t.Fatal(err)
	}
	if found, err := Agents(ns); err != nil || !slices.Equal(found, []snapshot.Agent{{Role: snapshot.ServiceProxy}}) {
		t.Errorf("%q, %v", found, err)
	}
	if found, err := Agents(other); err != nil || len(found) > 0 {
		t.Errorf("in another namespace: %q, %v", found, err)
	}
}

func TestParseAgents(t *testing.T) {
	const line = "0000000000000000: 00000002 00000000 00010000 0001 01 12345 "
	for text, want := range map[string][]snapshot.Agent{
		"Num       RefCount Protocol Flags    Type St Inode Path\n":                                      nil,
		line + "@packetwalk-node/service-proxy\n":                                                        {{Role: "service-proxy"}},
		line + "@packetwalk-node/ip-masq-agent#ABC234\n" + line + "@packetwalk-node/ip-masq-agent#DEF\n": {{Role: "ip-masq-agent"}},
		strings.Replace(line, "00010000", "00000000", 1) + "@packetwalk-node/service-proxy#ABC\n":        nil, // does not listen
		line + "@packetwalk-node/livez/4f7e\n":                                                           nil,
		line + "/run/@packetwalk-node/service-proxy\n":                                                   nil,
		line + "@packetwalk-node/\x1b[31m\n":                                                             nil,
	} {
		if got, err := parseAgents(strings.NewReader(text), int64(len(text))); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
		if got, err := parseAgents(strings.NewReader(text), int64(len(text))-1); err == nil || got != nil {
			t.Errorf("%q, cut: %q, %v", text, got, err)
		}
	}
}
