package excerpt

import (
	"regexp"
	"strings"
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
