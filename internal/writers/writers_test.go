package writers

import (
	"io/fs"
	"strings"
	"testing"

	"packetwalk.dev/internal/model/netfilter"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/node/proxy/nftables"
)

// oneHost is a source of one host.
type oneHost struct{ host *snapshot.Host }

func (o oneHost) Names() []string           { return []string{o.host.Name} }
func (o oneHost) Objects() snapshot.Objects { return snapshot.Objects{} }

func (o oneHost) Host(name string) (*snapshot.Host, error) {
	if name != o.host.Name {
		return nil, fs.ErrNotExist
	}
	return o.host, nil
}

// TestOrphans: only a table of ours is told, and only where it is known that no packetwalk-node has the role.
func TestOrphans(t *testing.T) {
	for name, c := range map[string]struct {
		agents []snapshot.Agent
		table  netfilter.Table
		told   bool
	}{
		"orphaned":        {[]snapshot.Agent{}, netfilter.Table{Name: nftables.TableName, Dialect: netfilter.NFTables}, true},
		"another role":    {[]snapshot.Agent{{Role: "ip-masq-agent"}}, netfilter.Table{Name: nftables.TableName, Dialect: netfilter.NFTables}, true},
		"kept":            {[]snapshot.Agent{{Role: "service-proxy"}}, netfilter.Table{Name: nftables.TableName, Dialect: netfilter.NFTables}, false},
		"not known":       {nil, netfilter.Table{Name: nftables.TableName, Dialect: netfilter.NFTables}, false},
		"another's table": {[]snapshot.Agent{}, netfilter.Table{Name: "kube-proxy", Dialect: netfilter.NFTables}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := &snapshot.Host{Name: "node/a", Agents: c.agents, Rules: &netfilter.Ruleset{Tables: []*netfilter.Table{&c.table}}}
			notes := Orphans(oneHost{h}, []string{h.Name, "node/unread"})
			if c.told && !strings.Contains(strings.Join(notes, ""), `run "packetwalk-node --cleanup --proxy-mode nftables" there`) {
				t.Errorf("without a remedy that works beside other roles: %q", notes)
			}
			if (len(notes) == 1) != c.told || c.told && !strings.HasPrefix(notes[0], `node/a has the nftables table "ip packetwalk-services"`) {
				t.Errorf("%q", notes)
			}
		})
	}
}
