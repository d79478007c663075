package dump

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/kernel/ruleset"
	nf "packetwalk.dev/internal/syntax/nfnetlink"
)

// maxListedRules bounds the rules that are listed by netlink.
const maxListedRules = 1 << 18

// listByNetlink lists the rule set in nft's JSON without nft, of which cause says why it failed: tables, chains with their hooks, and rules
// with their handles. Of a rule there are its leading counters and a verdict; anything else is "unread", with the cause. So what nft did
// not tell is unknown where a packet meets it, and nowhere else.
func listByNetlink(ctx context.Context, ns *netns.Namespace, cause string) ([]byte, error) {
	nft := ruleset.NFTables{NetNS: ns.FD()}
	defer nft.Close()
	all := nf.Table{Family: unix.NFPROTO_UNSPEC}
	list := nftLister{cause: cause, dormant: map[nf.Table]bool{}, objects: []any{}}
	ask := func(request netlink.Message, read func(family uint8, ad *netlink.AttributeDecoder) error) error {
		answers, err := nft.Ask(ctx, request)
		if err != nil {
			return err
		}
		return each(answers, read)
	}
	err := ask(all.ListTables(), list.table)
	if err == nil {
		err = ask(all.ListChains(), list.chain)
	}
	for i := 0; err == nil && i < len(list.tables); i++ {
		err = ask(list.tables[i].ListRules(""), list.rule)
	}
	if err != nil {
		return nil, fmt.Errorf("list rules by netlink: %w", err)
	}
	return json.Marshal(map[string]any{"nftables": list.objects})
}

// nftLister makes nft's objects of netlink's messages.
type nftLister struct {
	cause   string
	tables  []nf.Table
	dormant map[nf.Table]bool // tables whose chains nothing calls
	rules   int
	objects []any
}

type object map[string]any

// each calls f with the attributes of each message and the family that it is about.
func each(messages []netlink.Message, f func(family uint8, ad *netlink.AttributeDecoder) error) error {
	for _, m := range messages {
		if len(m.Data) < 4 { // struct nfgenmsg
			return fmt.Errorf("message of %d bytes is too short", len(m.Data))
		}
		ad, err := attributesOf(m.Data[4:])
		if err == nil {
			err = f(m.Data[0], ad)
		}
		if err == nil {
			err = ad.Err()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func attributesOf(b []byte) (*netlink.AttributeDecoder, error) {
	ad, err := netlink.NewAttributeDecoder(b)
	if err == nil {
		ad.ByteOrder = binary.BigEndian
	}
	return ad, err
}

func (l *nftLister) table(family uint8, ad *netlink.AttributeDecoder) error {
	t, o := nf.Table{Family: family}, object{"family": ruleset.Families[family]}
	const dormant = 1 // NFT_TABLE_F_DORMANT
	flags := uint32(0)
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_TABLE_NAME:
			t.Name = ad.String()
			o["name"] = t.Name
		case unix.NFTA_TABLE_FLAGS:
			flags = ad.Uint32()
		}
	}
	l.dormant[t] = flags&dormant != 0
	l.tables = append(l.tables, t)
	l.objects = append(l.objects, object{"table": o})
	return nil
}

// nftHooks are the names of hooks by their numbers (enum nf_inet_hooks, nf_dev_hooks, nf_arp_hooks).
var nftHooks = map[uint8][]string{
	unix.NFPROTO_NETDEV: {"ingress", "egress"},
	unix.NFPROTO_ARP:    {"input", "output", "forward"},
}

func (l *nftLister) chain(family uint8, ad *netlink.AttributeDecoder) error {
	t, o, base := nf.Table{Family: family}, object{"family": ruleset.Families[family]}, object{}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_CHAIN_TABLE:
			t.Name = ad.String()
			o["table"] = t.Name
		case unix.NFTA_CHAIN_NAME:
			o["name"] = ad.String()
		case unix.NFTA_CHAIN_HANDLE:
			o["handle"] = ad.Uint64()
		case unix.NFTA_CHAIN_TYPE:
			base["type"] = ad.String()
		case unix.NFTA_CHAIN_POLICY:
			if base["policy"] = "accept"; int32(ad.Uint32()) == nf.Drop {
				base["policy"] = "drop"
			}
		case unix.NFTA_CHAIN_HOOK:
			ad.Nested(func(ad *netlink.AttributeDecoder) error { return l.hook(family, base, ad) })
		}
	}
	for key, value := range base {
		if base["hook"] != nil && !l.dormant[t] {
			o[key] = value
		}
	}
	l.objects = append(l.objects, object{"chain": o})
	return nil
}

func (l *nftLister) hook(family uint8, base object, ad *netlink.AttributeDecoder) error {
	const devices = 4 // NFTA_HOOK_DEVS
	names := nftHooks[family]
	if names == nil {
		names = []string{"prerouting", "input", "forward", "output", "postrouting", "ingress"}
	}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_HOOK_HOOKNUM:
			n := ad.Uint32()
			if int(n) >= len(names) {
				return fmt.Errorf("unknown hook %d of family %d", n, family)
			}
			base["hook"] = names[n]
		case unix.NFTA_HOOK_PRIORITY:
			base["prio"] = int32(ad.Uint32())
		case unix.NFTA_HOOK_DEV:
			base["dev"] = ad.String()
		case devices:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				links := []string{}
				for ad.Next() {
					links = append(links, ad.String())
				}
				base["dev"] = links
				return nil
			})
		}
	}
	return nil
}

func (l *nftLister) rule(family uint8, ad *netlink.AttributeDecoder) error {
	if l.rules++; l.rules > maxListedRules {
		return fmt.Errorf("there are more than %d rules", maxListedRules)
	}
	o, statements := object{"family": ruleset.Families[family]}, []any{}
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			o["table"] = ad.String()
		case unix.NFTA_RULE_CHAIN:
			o["chain"] = ad.String()
		case unix.NFTA_RULE_HANDLE:
			o["handle"] = ad.Uint64()
		case unix.NFTA_RULE_EXPRESSIONS:
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				var unread object
				for ad.Next() {
					ad.Nested(func(ad *netlink.AttributeDecoder) error {
						name, s, known := expression(ad)
						if !known && unread == nil {
							unread = object{"why": l.cause}
							s = object{"unread": unread}
						}
						if unread != nil && tracking[name] {
							unread["tracks"] = true
						}
						if s != nil {
							statements = append(statements, s)
						}
						return nil
					})
				}
				return nil
			})
		}
	}
	o["expr"] = statements
	l.objects = append(l.objects, object{"rule": o})
	return nil
}

// tracking are expressions for which the kernel tracks connections (nf_ct_netns_get).
var tracking = map[string]bool{"ct": true, "nat": true, "masq": true, "redir": true}

// expression gives an expression's name, and a counter or a verdict as nft's statement; known is false for all others.
func expression(ad *netlink.AttributeDecoder) (name string, statement any, known bool) {
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			if name == "counter" {
				return name, object{"counter": nil}, true
			}
			if name == "immediate" {
				ad.Nested(func(ad *netlink.AttributeDecoder) error {
					statement, known = immediate(ad)
					return nil
				})
			}
		}
	}
	return name, statement, known
}

// verdictNames are the verdicts without a chain (include/uapi/linux/netfilter/nf_tables.h).
var verdictNames = map[int32]string{nf.Drop: "drop", nf.Accept: "accept", nf.Return: "return", unix.NFT_CONTINUE: "continue"}

func immediate(ad *netlink.AttributeDecoder) (statement any, known bool) {
	var register uint32
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_IMMEDIATE_DREG:
			register = ad.Uint32()
		case unix.NFTA_IMMEDIATE_DATA:
			if register != unix.NFT_REG_VERDICT {
				continue
			}
			ad.Nested(func(ad *netlink.AttributeDecoder) error {
				for ad.Next() {
					if ad.Type() == unix.NFTA_DATA_VERDICT {
						ad.Nested(func(ad *netlink.AttributeDecoder) error {
							statement, known = verdictOf(ad)
							return nil
						})
					}
				}
				return nil
			})
		}
	}
	return statement, known
}

func verdictOf(ad *netlink.AttributeDecoder) (statement any, known bool) {
	var code int32
	chain := ""
	for ad.Next() {
		switch ad.Type() {
		case unix.NFTA_VERDICT_CODE:
			code = int32(ad.Uint32())
		case unix.NFTA_VERDICT_CHAIN:
			chain = ad.String()
		}
	}
	switch {
	case code == nf.Jump && chain != "":
		return object{"jump": object{"target": chain}}, true
	case code == nf.Goto && chain != "":
		return object{"goto": object{"target": chain}}, true
	case verdictNames[code] != "":
		return object{verdictNames[code]: nil}, true
	}
	return nil, false
}
