package verify

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// matches returns at most n matches of a rule, with tabs between them. It leaves out those that stand in each other's way.
func (t *tables) matches(table, base string, n int) string {
	var all []string
	used := map[string]bool{}
	for range n {
		m := t.match(t.IntN(27), table, base)
		clash := false
		fields := strings.Fields(m)
		for i, f := range fields {
			switch f {
			case "-p", "-s", "-d", "-i", "-o":
			case "-m":
				f += fields[i+1]
			default:
				continue
			}
			clash = clash || used[f]
			used[f] = true
		}
		if !clash && m != "" {
			all = append(all, m)
		}
	}
	return strings.Join(all, "\t")
}

func (t *tables) not() string { return t.maybe(" !", 0.2) }

func (t *tables) interfaces() []string {
	return append(append([]string{"lo"}, t.site.links...), t.site.bridges...)
}

func (t *tables) match(kind int, table, base string) string {
	port := pick(t.generator, ports)
	in := base == "PREROUTING" || base == "INPUT" || base == "FORWARD"
	out := base == "POSTROUTING" || base == "OUTPUT" || base == "FORWARD"
	switch kind {
	case 0, 1:
		return fmt.Sprintf("%s -s %s", t.not(), t.prefix(t.six))
	case 2, 3:
		return fmt.Sprintf("%s -d %s", t.not(), t.prefix(t.six))
	case 4:
		p := pick(t.generator, []string{"tcp", "udp"})
		return fmt.Sprintf(" -p %s -m %s%s --dport %s", p, p, t.not(),
			pick(t.generator, []string{fmt.Sprint(port), fmt.Sprintf("%d:%d", port, port+1000), "1024:65535"}))
	case 5:
		return " -p " + pick(t.generator, []string{"tcp", "udp", t.icmp()})
	case 6:
		if in {
			return fmt.Sprintf("%s -i %s", t.not(), pick(t.generator, t.interfaces()))
		}
	case 7:
		if out {
			return fmt.Sprintf("%s -o %s", t.not(), pick(t.generator, t.interfaces()))
		}
	case 8:
		return fmt.Sprintf(" -m mark%s --mark %#x/%#x", t.not(), pick(t.generator, marks), pick(t.generator, []int{0xff, 0xffff, 0xffffffff}))
	case 9:
		if table != "raw" {
			return fmt.Sprintf(" -m connmark%s --mark %#x", t.not(), pick(t.generator, marks))
		}
	case 10:
		if table != "raw" {
			return fmt.Sprintf(" -m conntrack%s --ctstate %s", t.not(),
				pick(t.generator, []string{"NEW", "ESTABLISHED", "RELATED,ESTABLISHED", "INVALID", "NEW,UNTRACKED", "DNAT", "SNAT"}))
		}
	case 11:
		if t.six {
			return fmt.Sprintf(" -m addrtype%s --%s-type %s", t.not(), pick(t.generator, []string{"src", "dst"}),
				pick(t.generator, []string{"LOCAL", "UNICAST"}))
		}
		return fmt.Sprintf(" -m addrtype%s --%s-type %s", t.not(), pick(t.generator, []string{"src", "dst"}),
			pick(t.generator, []string{"LOCAL", "UNICAST", "LOCAL,BLACKHOLE"}))
	case 12:
		return fmt.Sprintf(" -p tcp -m multiport --dports %d,%d:%d", port, 8000, 9000)
	case 13:
		return fmt.Sprintf(" -m statistic --mode random%s --probability %.2f", t.not(), 0.25+math.Round(t.Float64()*10)/20)
	case 14:
		return t.fields()
	case 15:
		if set := t.set("net"); set != "" {
			return fmt.Sprintf(" -m set%s --match-set %s %s%s", t.not(), set, pick(t.generator, []string{"src", "dst"}),
				t.maybe(" --return-nomatch", 0.15))
		}
	case 16:
		if set := t.set("list"); set != "" && t.chance(0.4) {
			return fmt.Sprintf(" -m set%s --match-set %s %s", t.not(), set, pick(t.generator, []string{"src", "dst", "dst,dst", "src,src"}))
		}
		if set := t.set("ip,port"); set != "" {
			return fmt.Sprintf(" -m set%s --match-set %s dst,dst", t.not(), set)
		}
	case 17:
		a := pick(t.generator, t.allAddresses(t.six))
		return fmt.Sprintf(" -m iprange%s --%s-range %s-%s", t.not(), pick(t.generator, []string{"src", "dst"}), a, a.Next().Next())
	case 18:
		return t.rare(table, base)
	case 19:
		if table != "raw" {
			return pick(t.generator, []string{" -m conntrack --ctdir ORIGINAL", " -m conntrack --ctdir REPLY",
				fmt.Sprintf(" -m conntrack --ctorigdst %s", t.prefix(t.six)), " -m conntrack --ctproto 6"})
		}
	case 20:
		if table != "raw" {
			return fmt.Sprintf(" -m state%s --state %s", t.not(),
				pick(t.generator, []string{"NEW", "ESTABLISHED", "RELATED,ESTABLISHED", "INVALID", "NEW,UNTRACKED"}))
		}
	case 21:
		return fmt.Sprintf(" -m length%s --length %s", t.not(),
			pick(t.generator, []string{"60", "0:60", "61:84", "80", "41:", fmt.Sprint(40 + t.IntN(60))}))
	case 22, 23:
		return t.ports()
	case 24:
		return t.group(base)
	case 25:
		every := 1 + t.IntN(4)
		return fmt.Sprintf(" -m statistic --mode nth%s --every %d --packet %d", t.not(), every, t.IntN(every))
	case 26:
		return t.history()
	}
	return ""
}

// ports returns a test of source ports, of several ports, or of SCTP's.
func (t *tables) ports() string {
	port := pick(t.generator, ports)
	p := pick(t.generator, []string{"tcp", "udp", "sctp"})
	if t.chance(0.5) {
		return fmt.Sprintf(" -p %s -m %s%s --%s %s", p, p, t.not(), pick(t.generator, []string{"sport", "sport", "dport"}),
			pick(t.generator, []string{fmt.Sprint(port), ":1023", "1024:", "20000:20001", "30000:65535"}))
	}
	return fmt.Sprintf(" -p %s -m multiport%s --%s %d,%s", p, t.not(), pick(t.generator, []string{"sports", "dports", "ports"}), port,
		pick(t.generator, []string{"20000:20002", "32768:49000", "8000:9000", "1"}))
}

// group returns a test of an interface's group, which only some chains can make.
func (t *tables) group(base string) string {
	var sides []string
	if base == "PREROUTING" || base == "INPUT" || base == "FORWARD" {
		sides = append(sides, "src")
	}
	if base == "POSTROUTING" || base == "OUTPUT" || base == "FORWARD" {
		sides = append(sides, "dst")
	}
	if len(sides) == 0 {
		return ""
	}
	return fmt.Sprintf(" -m devgroup%s --%s-group %s", t.not(), pick(t.generator, sides),
		pick(t.generator, []string{"0x0", "0x5", "0x6", "0x4/0x4"}))
}

// history returns a test whose answer depends on the packets before.
func (t *tables) history() string {
	side := pick(t.generator, []string{"rsource", "rdest"})
	recent := fmt.Sprintf(" --name seen%d --%s", t.IntN(2), side)
	t.site.histories++
	return pick(t.generator, []string{
		" -m recent --set" + recent, " -m recent --set" + recent, " -m recent" + t.not() + " --rcheck --seconds 60" + recent,
		" -m recent" + t.not() + " --update --seconds 60 --hitcount 2" + recent, " -m recent --remove" + recent,
		" -m limit --limit 1/minute --limit-burst " + fmt.Sprint(1+t.IntN(3)),
		fmt.Sprintf(" -m hashlimit --hashlimit-%s 2/minute --hashlimit-burst %d --hashlimit-mode %s --hashlimit-name h%d",
			pick(t.generator, []string{"upto", "above"}),
			1+t.IntN(3), pick(t.generator, []string{"srcip", "dstip", "srcip,dstport", "dstip,dstport"}), t.site.histories),
		fmt.Sprintf(" -m connlimit --connlimit-%s %d --connlimit-mask 24 --connlimit-%saddr", pick(t.generator, []string{"upto", "above"}),
			t.IntN(3),
			pick(t.generator, []string{"s", "d"})),
		fmt.Sprintf(" -m quota%s --quota %d", t.not(), 50+t.IntN(200)), t.account(),
	})
}

// account counts in one of two objects of the site.
func (t *tables) account() string {
	name := fmt.Sprintf("seen%d", t.IntN(2))
	if lines := t.site.lines("nfacct"); !slices.Contains(*lines, name) {
		t.site.Add("nfacct", "%s", name)
	}
	return " -m nfacct --nfacct-name " + name
}

// odd returns a match that the model need not understand. The model itself says whether it does.
func (t *tables) odd(table string) string {
	all := []string{" -m u32 --u32 0&0xf=0x5", " -m ecn --ecn-ip-ect 0", " -m cpu --cpu 0", " -m string --algo bm --string abc",
		" -m time --timestart 01:00 --timestop 13:00"}
	if table != "raw" {
		all = append(all, " -m connbytes --connbytes 0:1 --connbytes-dir both --connbytes-mode packets",
			" -p sctp -m sctp --chunk-types any INIT")
	}
	return pick(t.generator, all)
}

func (t *tables) icmp() string {
	if t.six {
		return "ipv6-icmp"
	}
	return "icmp"
}

func (t *tables) fields() string {
	ttl := "ttl --ttl"
	icmp := " -p icmp -m icmp --icmp-type 8"
	if t.six {
		ttl, icmp = "hl --hl", " -p ipv6-icmp -m icmp6 --icmpv6-type 128"
	}
	return pick(t.generator, []string{
		fmt.Sprintf(" -m %s-%s %d", ttl, pick(t.generator, []string{"eq", "lt", "gt"}), 60+t.IntN(6)), icmp,
		fmt.Sprintf(" -m dscp --dscp %d", pick(t.generator, []int{0, 1, 2, 4, 46})),
		fmt.Sprintf(" -m tos --tos %#x/0xff", pick(t.generator, []int{0, 8, 16})),
		" -p tcp -m tcp --tcp-flags SYN,ACK,RST SYN", " -p tcp -m tcp --syn",
	})
}

// rare returns a match that holds in some places only.
func (t *tables) rare(table, base string) string {
	var all []string
	if base == "OUTPUT" || base == "POSTROUTING" {
		all = append(all, " -m owner --uid-owner 0", " -m owner --uid-owner 1000", " -m owner ! --gid-owner 1000")
	}
	if base == "PREROUTING" && table == "raw" {
		all = append(all, " -m rpfilter --invert", " -m rpfilter --loose")
	}
	if base == "PREROUTING" || base == "FORWARD" || base == "INPUT" {
		all = append(all, " -m mac --mac-source 02:00:00:00:01:01", " -m pkttype --pkt-type unicast", " -m physdev --physdev-is-in")
		if len(t.site.links) > 0 {
			all = append(all, " -m physdev --physdev-in "+pick(t.generator, t.site.links))
		}
	}
	if base == "FORWARD" || base == "POSTROUTING" {
		all = append(all, " -m physdev --physdev-is-bridged")
	}
	if len(all) == 0 {
		return ""
	}
	return pick(t.generator, all)
}
