package nfnetlink

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Table names a table. Its methods give the messages that change it, for a batch.
type Table struct {
	Family uint8 // unix.NFPROTO_IPV4 or NFPROTO_IPV6
	Name   string
}

// Chain is a chain with its rules.
type Chain struct {
	Name  string
	Base  *Base // nil for one that is jumped to
	Rules []Rule
}

// Base is what calls a chain; its policy is to accept.
type Base struct {
	Type     string // "filter", "nat"
	Hook     uint32 // unix.NF_INET_…
	Priority int32
}

// Rule is a rule with its comment, which has at most 128 bytes.
type Rule struct {
	Comment string
	Exprs   []Expr
}

func (r *Rule) attrs() Attrs {
	a := Attrs{{unix.NFTA_RULE_EXPRESSIONS, exprList(r.Exprs)}}
	if r.Comment != "" {
		a = append(a, Attr{unix.NFTA_RULE_USERDATA, appendComment(nil, udataRuleComment, r.Comment)})
	}
	return a
}

const headerLen = 4 // struct nfgenmsg: family, version, resource id

// message returns one message about the table.
func (t Table) message(kind int, flags netlink.HeaderFlags, a Attrs) netlink.Message {
	return t.raw(kind, flags, a.Append([]byte{t.Family, unix.NFNETLINK_V0, 0, 0}))
}

func (t Table) raw(kind int, flags netlink.HeaderFlags, data []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | flags}, Data: data,
	}
}

// Make makes the table, if it is not there, without flags: one that is dormant awakes.
func (t Table) Make() netlink.Message {
	return t.message(unix.NFT_MSG_NEWTABLE, netlink.Create, Attrs{{unix.NFTA_TABLE_NAME, t.Name}, {unix.NFTA_TABLE_FLAGS, uint32(0)}})
}

// MakeOwned makes the table, which must not be there, for as long as the socket is open that sends this.
func (t Table) MakeOwned() netlink.Message {
	const owner = 0x2 // NFT_TABLE_F_OWNER
	return t.message(unix.NFT_MSG_NEWTABLE, netlink.Create|netlink.Excl,
		Attrs{{unix.NFTA_TABLE_NAME, t.Name}, {unix.NFTA_TABLE_FLAGS, uint32(owner)}})
}

// Delete deletes the table with all that is in it.
func (t Table) Delete() netlink.Message {
	return t.message(unix.NFT_MSG_DELTABLE, 0, Attrs{{unix.NFTA_TABLE_NAME, t.Name}})
}

// MakeChain makes a chain without rules, if it is not there.
func (t Table) MakeChain(c *Chain) netlink.Message {
	a := Attrs{{unix.NFTA_CHAIN_TABLE, t.Name}, {unix.NFTA_CHAIN_NAME, c.Name}}
	if c.Base != nil {
		a = append(a, Attr{unix.NFTA_CHAIN_TYPE, c.Base.Type}, Attr{unix.NFTA_CHAIN_HOOK, Attrs{
			{unix.NFTA_HOOK_HOOKNUM, c.Base.Hook}, {unix.NFTA_HOOK_PRIORITY, c.Base.Priority},
		}}, Attr{unix.NFTA_CHAIN_POLICY, Accept})
	}
	return t.message(unix.NFT_MSG_NEWCHAIN, netlink.Create, a)
}

// FlushChain deletes a chain's rules.
func (t Table) FlushChain(name string) netlink.Message {
	return t.message(unix.NFT_MSG_DELRULE, 0, Attrs{{unix.NFTA_RULE_TABLE, t.Name}, {unix.NFTA_RULE_CHAIN, name}})
}

// DeleteChain deletes a chain to which nothing leads.
func (t Table) DeleteChain(name string) netlink.Message {
	return t.message(unix.NFT_MSG_DELCHAIN, 0, Attrs{{unix.NFTA_CHAIN_TABLE, t.Name}, {unix.NFTA_CHAIN_NAME, name}})
}

// AddRules appends a chain's rules to it.
func (t Table) AddRules(c *Chain) []netlink.Message {
	messages := make([]netlink.Message, len(c.Rules))
	for i := range c.Rules {
		messages[i] = t.message(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append,
			append(Attrs{{unix.NFTA_RULE_TABLE, t.Name}, {unix.NFTA_RULE_CHAIN, c.Name}}, c.Rules[i].attrs()...))
	}
	return messages
}

// Batch returns a transaction of messages, of which the last is answered. The kernel refuses it with ERESTART if its rules are of another
// generation; 0 is any.
func Batch(messages []netlink.Message, generation uint32) []netlink.Message {
	const id = 1 // NFNL_BATCH_GENID
	edge := func(kind netlink.HeaderType, a Attrs) netlink.Message {
		return netlink.Message{Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data: a.Append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES})}
	}
	var begin Attrs
	if generation != 0 {
		begin = Attrs{{id, generation}}
	}
	batch := make([]netlink.Message, 0, len(messages)+2)
	batch = append(append(batch, edge(unix.NFNL_MSG_BATCH_BEGIN, begin)), messages...)
	batch[len(batch)-1].Header.Flags |= netlink.Acknowledge
	return append(batch, edge(unix.NFNL_MSG_BATCH_END, nil))
}

// GetGeneration asks for the number of the transaction that made the namespace's rules what they are.
func GetGeneration() netlink.Message { return Table{}.message(unix.NFT_MSG_GETGEN, 0, nil) }

func (t Table) list(kind int, a Attrs) netlink.Message {
	return t.message(kind, netlink.Dump, a)
}

// ListTables asks for the tables of the family.
func (t Table) ListTables() netlink.Message { return t.list(unix.NFT_MSG_GETTABLE, nil) }

// ListChains asks for the chains of the family.
func (t Table) ListChains() netlink.Message { return t.list(unix.NFT_MSG_GETCHAIN, nil) }

// ListSets asks for the table's sets.
func (t Table) ListSets() netlink.Message {
	return t.list(unix.NFT_MSG_GETSET, Attrs{{unix.NFTA_SET_TABLE, t.Name}})
}

// ListRules asks for the table's rules, or those of one chain.
func (t Table) ListRules(chain string) netlink.Message {
	a := Attrs{{unix.NFTA_RULE_TABLE, t.Name}}
	if chain != "" {
		a = append(a, Attr{unix.NFTA_RULE_CHAIN, chain})
	}
	return t.list(unix.NFT_MSG_GETRULE, a)
}

// ListElements asks for the elements of a set.
func (t Table) ListElements(set string) netlink.Message {
	return t.list(unix.NFT_MSG_GETSETELEM, Attrs{{unix.NFTA_SET_ELEM_LIST_TABLE, t.Name}, {unix.NFTA_SET_ELEM_LIST_SET, set}})
}

// GetChain asks for a chain.
func (t Table) GetChain(name string) netlink.Message {
	return t.message(unix.NFT_MSG_GETCHAIN, 0, Attrs{{unix.NFTA_CHAIN_TABLE, t.Name}, {unix.NFTA_CHAIN_NAME, name}})
}

// Get asks whether the table is there.
func (t Table) Get() netlink.Message {
	return t.message(unix.NFT_MSG_GETTABLE, 0, Attrs{{unix.NFTA_TABLE_NAME, t.Name}})
}
