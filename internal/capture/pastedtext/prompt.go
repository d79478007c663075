package pastedtext

import (
	"cmp"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/snapshot"
)

// tool is a command whose output is read, or that leads to where such a command runs.
const tool = `(?:sudo\s+(?:-\S+\s+)*)?(?:/\S*/)?(?:ip6?tables(?:-\S+)?|ebtables(?:-\S+)?|nft|ipset|ip|conntrack|sysctl|route|netstat|ifconfig|bridge|` +
	`ipvsadm|nsenter|kubectl|docker|crictl|ssh)(?:\s.*)?`

// Prompts of shells beside those that people leave as they are: what is in front of the command, and the command.
var (
	// arrowPrompt is that of zsh's and fish's themes: "➜  ~ git:(main) ✗ iptables -S", "❯ ip route".
	arrowPrompt = regexp.MustCompile(`^[➜❯➤▶λ»]\s+(?:.*?\s)??(` + tool + `)$`)
	// hostPrompt is "node-1:/etc # ip route" or "node-1% ip route"; versionPrompt is "bash-5.1# ip route".
	hostPrompt    = regexp.MustCompile(`^([A-Za-z][\w.-]*)(?::[~/]\S*\s?[#$%>]|%|>)\s+(` + tool + `)$`)
	versionPrompt = regexp.MustCompile(`^(?:ba|da|a|z)?sh-[0-9.]+[#$]\s+(` + tool + `)$`)
	// fishPrompt is "user@node-1 /etc> ip route" or "root@node-1 ~# ip route".
	fishPrompt = regexp.MustCompile(`^([\w.-]+@[\w.-]+)\s+[~/]\S*[>#$]\s+(` + tool + `)$`)
	// bullet is a command in a list: "- iptables -S", "2. iptables -S".
	bullet = regexp.MustCompile(`^(?:[-*•]|[0-9]{1,2}[.)])\s+\x60?(` + tool + `)$`)
	// bare is a command without a prompt.
	bare = regexp.MustCompile(`^((?:sudo\s+)?ip\s+(?:-\S+\s+)*(?:r|ro|route|a|addr|address|rule)(?:\s+(?:s|show|l|ls|list|get)(?:\s+[\w./:-]+)*)?)$`)
	// quoted is a command in a sentence: "the output of ` + "`iptables -S`" + ` is:".
	quoted = regexp.MustCompile("^[^`]*`(" + tool + ")`[^`]*:$")
)

// commandOf returns the command behind a prompt, or the line as it is.
func commandOf(line string) (command string, prompted bool) {
	if m := namedPrompt.FindStringSubmatch(line); m != nil {
		return strings.TrimSpace(m[2]), true
	}
	if m := barePrompt.FindStringSubmatch(line); m != nil {
		return strings.TrimSpace(cmp.Or(m[1], m[2])), true
	}
	if command, ok := strings.CutPrefix(line, "# "); ok && beginsChange(command) {
		return command, true
	}
	return line, false
}

// unprompted is a command without a prompt that lists something. One that changes something is known by changes.
var unprompted = regexp.MustCompile(`^(?:sudo\s+\S|(?:ip6?tables(?:-\S+)?|nft|ipset|ipvsadm|conntrack|ebtables|arptables|bridge|sysctl|nsenter|ip|route|tc|ufw)\s+` +
	`(?:-\S|list\b|show\b|save\b|(?:link|addr|address|route|rule|neigh|netns|qdisc|fdb)\s+(?:show|list|exec)))`)

// prompt takes a command that no other reader took.
func (s *scanner) prompt(line string) bool {
	command, prompted := commandOf(line)
	if !prompted && !unprompted.MatchString(line) {
		return false
	}
	s.reset()
	if m := prints.FindStringSubmatch(command); m != nil {
		s.printed = append(s.printed[max(0, len(s.printed)-mostStages):], m[1])
	}
	if m := heredoc.FindStringSubmatch(command); m != nil && s.at < len(s.lines) && strings.HasPrefix(s.lines[s.at].text, "*") {
		s.now = context{source: source{family: 4, variant: variantOf(m[1])}}
		if strings.HasPrefix(m[1], "ip6") {
			s.now.family = 6
		}
		s.restored = true
		s.NoEffect(s.at, "loads what is shown below")
		return true
	}
	if m := loads.FindStringSubmatch(command); m != nil && slices.Contains(s.printed, m[1]) {
		s.NoEffect(s.at, "loads a file that is shown above")
	} else if of := concerns(command); of != nil {
		s.noteChange(command, of)
	} else {
		s.NoEffect(s.at, "a command that changes nothing")
	}
	return true
}

var (
	// heredoc is a command that replaces tables by those that are shown below it.
	heredoc = regexp.MustCompile(`^(?:sudo\s+(?:-\S+\s+)*)?(?:/\S*/)?(ip6?tables\S*-restore)\s+(?:(?:-[cv]|--counters|--verbose)\s+)*<<-?\s*['"]?\w+['"]?$`)
	// prints is a command that shows a file, and loads one that carries it out.
	prints = regexp.MustCompile(`^(?:sudo\s+)?cat\s+(/\S+)$`)
	loads  = regexp.MustCompile(`(?:^|[\s/])(?:nft\s+(?:-f|--file)|ip6?tables\S*-restore\s+<?)\s*(/\S+)$`)
)

// loses is a pipeline that shows rules without some of its lines. Comments and empty lines hold no state.
var loses = regexp.MustCompile(`\b(?:ip6?tables\S*|nft|ebtables\S*)\s[^|]*\|.*?\b(?:head|tail|z?e?f?grep\s(?:-\w+\s+)*-\w*v|grep\s(?:\S+\s+)*--invert-match)\b\s*(\S*)`)

// filter notes that a command's output went through a program that took lines out.
func (s *scanner) filter(line string) {
	if m := loses.FindStringSubmatch(line); m != nil && !strings.HasPrefix(strings.TrimLeft(m[1], `'"\`), "^") && s.Account[s.at-1].Fate != snapshot.LineNotRead && !strings.HasPrefix(line, "-A ") {
		s.NotRead(s.at, "it takes lines out of what follows")
		s.note(leftOut, s.at, "line %d: lines are taken out of what follows: %s", s.at, line)
	}
}

// several takes a line of several commands that change something, each as if it had a line to itself.
func (s *scanner) several(line string) bool {
	command, _ := commandOf(line)
	if !strings.ContainsAny(command, ";&|") || mentions(command) == nil {
		return false
	}
	commands := splitCommands(command, false)
	if len(commands) < 2 {
		return false
	}
	for i := range commands {
		if s.errexit && commands[i].operator == ";" {
			commands[i].operator = "&&"
		}
	}
	for i, c := range commands {
		switch certain := isCertain(commands[:i], c.operator); {
		case !certain && s.maybeRun(c.text), certain && (s.command(c.text) || s.ipMade(c.text) || s.nftMade(c.text)):
		case concerns(c.text) != nil:
			s.noteChange(c.text, concerns(c.text))
		}
	}
	return true
}

// A shellCommand is one command of a shell's line.
type shellCommand struct {
	operator string // in front of it: ";", "&&", "||" or "|"; "" for the first
	text     string
}

// splitCommands splits a shell's line at ";", "&&" and "||", and with pipes at "|", outside of quotation marks and braces.
func splitCommands(line string, pipes bool) []shellCommand {
	var commands []shellCommand
	operator, begin, braces, quote := "", 0, 0, byte(0)
	cut := func(end int, next string) {
		if c := strings.TrimSpace(line[begin:end]); c != "" {
			commands = append(commands, shellCommand{operator, c})
		}
		operator, begin = next, end+len(next)
	}
	for i := 0; i < len(line); i++ {
		rest := line[i:]
		switch c := line[i]; {
		case c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '{':
			braces++
		case c == '}':
			braces--
		case braces > 0:
		case strings.HasPrefix(rest, "&&"), strings.HasPrefix(rest, "||"):
			cut(i, rest[:2])
			i++
		case c == ';', pipes && c == '|':
			cut(i, rest[:1])
		}
	}
	cut(len(line), "")
	return commands
}

// plainPrompt writes a command line with a prompt that the scanner knows. Other lines are returned as they are.
func plainPrompt(line string) string {
	if len(line) < 2 || line[0] == '-' && line[1] != ' ' || line[0] == ':' || line[0] == '[' || line[0] == '#' {
		return line // a rule, a chain or a comment, which most lines are
	}
	for _, p := range []*regexp.Regexp{hostPrompt, fishPrompt} {
		if m := p.FindStringSubmatch(line); m != nil {
			who := m[1]
			if !strings.Contains(who, "@") {
				who = "user@" + who
			}
			return who + ":~$ " + m[2]
		}
	}
	for _, p := range []*regexp.Regexp{arrowPrompt, versionPrompt, bullet, bare, quoted} {
		if m := p.FindStringSubmatch(line); m != nil {
			return "$ " + m[1]
		}
	}
	return line
}
