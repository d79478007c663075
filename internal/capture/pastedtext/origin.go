package pastedtext

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
)

// origin is where a command of the text ran, as far as prompts and command lines tell: the machine in the prompt ("aks-nodepool1-0" of
// "jose@aks-nodepool1-0:~$"), or the command that went into another network namespace ("nsenter -t 4711 -n ip addr"). The zero value is a
// place that nothing tells of.
type origin struct {
	machine string
	entered string
	headed  bool // a heading names the machine, and no prompt
	remote  bool // a command that ran there names the machine
}

// isElsewhere reports whether an origin says nothing about another one. An unknown origin is assumed to be the same.
func (o origin) isElsewhere(home origin) bool {
	return o.entered != home.entered || o.machine != home.machine && (o.remote || home.remote || o.machine != "" && home.machine != "")
}

func (o origin) String() string {
	if o.entered != "" {
		return o.entered
	}
	if o.machine == "" {
		return "where the text's own shell runs"
	}
	return "on " + o.machine
}

var (
	// namedPrompt is "jose@aks-0:~$ COMMAND" or "[root@aks-0 ~]# COMMAND".
	namedPrompt = regexp.MustCompile(`^\[?[\w.-]+@([\w.-]+)(?::|\s|\])[^$#]*[$#](?:\s+(.*))?$`)
	// barePrompt is "$ COMMAND", "~ $ COMMAND" or "/ # COMMAND". A "#" alone is a prompt only in front of a program: there are comments.
	barePrompt = regexp.MustCompile(`^(?:(?:(?:~|/)\S*\s+[$#]|\$)\s+(.*)|#\s+((?:sudo |nsenter|ip |ip6?tables|ipset |conntrack |nft |bridge |ebtables|ipvsadm|sysctl |cat /|kubectl |docker |crictl |exit\b).*))$`)
	// enters are the commands that go to another machine or network namespace.
	enters = regexp.MustCompile(`\b(?:nsenter|ip netns exec|ip (?:-\S+ )*-n(?:etns)? \S+|(?:docker|podman|nerdctl|crictl|kubectl|oc|k)(?: \S+)*? exec|(?:kubectl|oc|k)(?: \S+)*? (?:debug|node-shell)|ssh)\s`)
	// nodeShell is a command that runs another one on a node, or opens a shell there.
	nodeShell = regexp.MustCompile(`\b(?:kubectl|oc|k)\s(?:\S+\s+)*?(?:debug\s+(?:\S+\s+)*?node/|node-shell\s+(?:-\S+\s+)*)([\w.-]+)(.*)$`)
	// inside are the programs that are run there.
	inside = regexp.MustCompile(`(?:^|[\s/'"])(?:ip|ip6?tables\S*|ebtables\S*|nft|ipset|conntrack|sysctl|bridge|ifconfig|route|arp|tcpdump)\s`)
	shells = regexp.MustCompile(`(?:^|[\s/])(?:ba|a|z|da)?sh(?: -\w+)*$`)
)

// see takes a line for what it tells about the place of what follows.
func (s *scanner) see(line string) {
	if s.whole != "" && s.whole != "}" {
		return
	}
	command, prompted := commandOf(line)
	if !prompted {
		return
	}
	if s.promptAt = s.at; !s.from.headed || s.session != (origin{}) {
		s.from = s.session
	}
	if m := namedPrompt.FindStringSubmatch(line); m != nil {
		s.from, s.session = origin{machine: m[1]}, origin{}
	}
	s.passive, s.restored = "", false
	if m := passive.FindStringSubmatch(command); m != nil && !inside.MatchString(command) {
		s.passive = m[1]
	}
	s.routes = parseIP(command)
	s.allShown = listsAll.MatchString(command)
	s.filtered = strings.Contains(command, "|") || s.routes.some || oneLink.MatchString(command)
	s.nft, s.form, s.setting = parseNFT(command), "", parseSetting(command)
	switch {
	case command == "exit" || command == "logout":
		s.from, s.session = origin{}, origin{}
	case enters.MatchString(command):
		s.from = enteredBy(command)
		if shells.MatchString(command) || isLogin(command) {
			s.session = s.from // what is shown below bare prompts is there
		}
	}
}

// passive are programs whose output says nothing of rules, routes or connections.
var passive = regexp.MustCompile(`^(?:sudo\s+)?(ping6?|curl|wget|nc|ncat|telnet|tcpdump|traceroute6?|tracepath|mtr|dig|nslookup|host|kubectl|docker|crictl|ls|` +
	`uname|lsmod|ps|systemctl|journalctl|dmesg|hostname|date|lspci|ethtool|cat /etc/\S*|modprobe|apt|yum|dnf)\b`)

// oneLink is a command that lists one interface.
var oneLink = regexp.MustCompile(`\bifconfig\s+[a-z]`)

// listsAll is a command that lists all connections, sets, bridges' rules, IPVS's services or forwarding entries.
var listsAll = regexp.MustCompile(`\bconntrack\s+(?:-L|--dump)(?:\s+conntrack)?\s*(?:2?>.*)?$|\bcat\s+/proc/net/nf_conntrack\s*$|` +
	`\bipset\s+(?:-L|-S|list|save)\s*$|\bebtables\S*-save\s*$|\bipvsadm\s+(?:-Ln|-ln|-L\s+-n|-S\S*)\s*$|\bbridge\s+fdb(?:\s+show)?\s*$`)

// oneSetting is a command that prints the value of one sysctl, without its name.
var oneSetting = regexp.MustCompile(`\b(?:cat\s+/proc/sys/(net/\S+)|sysctl\s+-n\s+(net\.\S+))$`)

// parseSetting gives the sysctl that a command prints; "" for any other command.
func parseSetting(command string) string {
	m := oneSetting.FindStringSubmatch(strings.TrimSpace(command))
	if m == nil {
		return ""
	}
	return cmp.Or(strings.ReplaceAll(m[1], "/", "."), m[2])
}

// into returns the part of a command that goes somewhere, without what is run there.
func into(command string) string {
	command = strings.TrimPrefix(command, "sudo ")
	end := enters.FindStringIndex(command)[1]
	if at := inside.FindStringIndex(command[end:] + " "); at != nil {
		return strings.TrimRight(command[:end+at[0]], ` '"/`)
	}
	return command
}

// enteredBy returns where a command runs another one.
func enteredBy(command string) origin {
	if m := nodeShell.FindStringSubmatch(command); m != nil {
		return origin{machine: m[1], remote: true}
	}
	if words := sshWords(command); len(words) > 0 && !enters.MatchString(strings.Join(words[1:], " ")+" ") {
		_, host, named := strings.Cut(words[0], "@")
		if !named {
			host = words[0]
		}
		return origin{machine: host, remote: true}
	}
	return origin{entered: into(command)}
}

// isLogin tells of an ssh or a shell on a node without a command.
func isLogin(command string) bool {
	m := nodeShell.FindStringSubmatch(command)
	return m != nil && !strings.Contains(m[2], " -- ") || len(sshWords(command)) == 1
}

// sshWords returns the words of an ssh without its options: the host, then a command.
func sshWords(command string) []string {
	words := strings.Fields(command)
	if len(words) < 2 || words[0] != "ssh" {
		return nil
	}
	for i := 1; i < len(words); i++ {
		switch w := words[i]; {
		case len(w) == 2 && w[0] == '-' && strings.Contains("bcDEeFIiJLlmOopQRSWw", w[1:]):
			i++ // its value
		case w[0] != '-':
			return words[i:]
		}
	}
	return nil
}

// leaveOut drops what was seen elsewhere than on a machine, or where nothing was seen there, than most rules were, or where there are none,
// than what comes first.
func (s *scanner) leaveOut(machine string) error {
	home, found := s.on(machine)
	if names := s.machines(); !found && len(names) > 1 {
		return &SeveralHostsError{names}
	}
	if !found {
		home, found = s.mostSeen()
	}
	if !found {
		return nil
	}
	told := map[origin]bool{}
	away := func(line int, what string, from origin) bool {
		if !from.isElsewhere(home) {
			return false
		}
		if !told[from] {
			s.note(leftOut, line, "line %d: %s is left out: it was seen elsewhere (%s)", line, what, from)
		}
		told[from] = true
		return true
	}
	s.changes = slices.DeleteFunc(s.changes, func(c change) bool {
		gone := home.machine != "" && c.from.machine != "" && c.from.machine != home.machine
		if gone {
			s.Account[c.line-1] = snapshot.TextLine{Fate: snapshot.LineNoEffect, As: elsewhere}
		}
		return gone
	})
	s.blocks = slices.DeleteFunc(s.blocks, func(b Block) bool {
		gone := away(b.Line, string(b.Kind), b.from)
		for i := 0; gone && i < len(b.numbers); i++ {
			s.NoEffect(b.numbers[i], elsewhere)
		}
		return gone
	})
	s.found = slices.DeleteFunc(s.found, func(r *run) bool {
		gone := away(r.line, "chain "+r.chain, r.from)
		for i := 0; gone && i < len(r.rules); i++ {
			s.NoEffect(r.rules[i].line, elsewhere)
		}
		return gone
	})
	return nil
}

// origins yields those of all that was seen, with their lines.
func (s *scanner) origins(yield func(line int, from *origin) bool) {
	for _, r := range s.found {
		if !yield(r.line, &r.from) {
			return
		}
	}
	for i := range s.blocks {
		if !yield(s.blocks[i].Line, &s.blocks[i].from) {
			return
		}
	}
}

// machines returns the names of those of which something was seen, or of the namespaces if nothing else was seen. Where commands ran on other
// machines, the text's own is called by its line.
func (s *scanner) machines() []string {
	at, within := map[string]int{}, map[string]int{} // the first line
	remote, own := false, 0
	add := func(first map[string]int, name string, line int) {
		if name != "" && (first[name] == 0 || line < first[name]) {
			first[name] = line
		}
	}
	for line, from := range s.origins {
		if remote = remote || from.remote; *from == (origin{}) && (own == 0 || line < own) {
			own = line
		}
	}
	for line, from := range s.origins {
		if remote && *from == (origin{}) {
			from.machine = fmt.Sprintf("line-%d", own)
		}
		add(at, from.machine, line)
		add(within, from.entered, line)
	}
	if len(at) == 0 && own == 0 {
		at = within
	}
	return slices.SortedFunc(maps.Keys(at), func(a, b string) int { return at[a] - at[b] })
}

// on returns a machine or namespace of which something was seen.
func (s *scanner) on(machine string) (home origin, found bool) {
	s.machines()
	for _, from := range s.origins {
		if machine != "" && (from.machine == machine || from.entered == machine) {
			return *from, true
		}
	}
	return origin{machine: machine}, false
}

// mostSeen returns the origin of most rules.
func (s *scanner) mostSeen() (home origin, found bool) {
	rules := map[origin]int{}
	for _, r := range s.found {
		rules[r.from] += 1 + len(r.rules)
		if rules[r.from] > rules[home] || !found {
			home, found = r.from, true
		}
	}
	if !found && len(s.blocks) > 0 {
		return s.blocks[0].from, true
	}
	return home, found
}
