package pastedtext

import (
	"fmt"
	"regexp"
	"strings"
)

// The control structures of a shell's script (POSIX.1-2024, Shell Command Language, section 2.9.4), as people write them: one keyword
// begins a line.
var (
	// opensStructure ends with the line behind which commands run under a condition, repeatedly, or when a function is called.
	opensStructure = regexp.MustCompile(`^(?:if|for|while|until|select)\s.*;\s*(?:then|do)$|^case\s.*\sin$|^(?:then|do)$|^(?:function\s+)?[\w-]+\s*\(\)\s*\{?$`)
	// inStructure divides one. The label of a case stands alone, or in front of its first command.
	inStructure     = regexp.MustCompile(`^(?:else|elif\s.*|;;&?|\{|\(?[^\s()]+\))$|^(?:if|for|while|until|select)\s`)
	closesStructure = regexp.MustCompile(`^(?:fi|done|esac)(?:\s*[;<>|&].*)?$`)
	braceEnd        = regexp.MustCompile(`^\}(?:\s*[;<>|&].*)?$`)
	// onOneLine is a function that is defined on one line.
	onOneLine  = regexp.MustCompile(`^(?:function\s+)?[\w-]+\s*\(\)\s*\{.*\}$`)
	exits      = regexp.MustCompile(`^exit(?:\s+[0-9]+)?$`)
	checksRule = regexp.MustCompile(`^(?:sudo\s+)?(?:/\S*/)?ip6?tables\S*\s(?:.*\s)?(?:-C|--check)\s`)
	// always are programs that a shell goes on behind "&&" of, if nothing is wrong with the machine.
	setsOptions = regexp.MustCompile(`^set(?:\s+[-+](?:[aefuvxET]+|[aefuvxET]*o\s+(?:errexit|nounset|pipefail|xtrace|verbose|errtrace|functrace)))+$`)
	setsErrexit = regexp.MustCompile(`\s([-+])(?:[a-zA-Z]*e|[a-zA-Z]*o\s+errexit\b)`)
	runsErrexit = regexp.MustCompile(`^#!\s*/\S+(?:\s+\S+)*?\s+-[a-z]*e`)
	always      = regexp.MustCompile(`^(?:cd|echo|printf|export|set|true|sleep|mkdir|modprobe|apt(?:-get)?|dnf|yum|systemctl|sudo)(?:\s|$)`)
	// succeeds are commands of a script that fail only if the script itself is wrong.
	succeeds = regexp.MustCompile(`^(?:\w+=\S*$|(?:trap|readonly|local|declare|unset|umask|wait|:|exec\s+[0-9]*[<>])(?:\s|$))|\|\|\s*(?:true|:)$`)
)

const (
	maybeScript = "a command in a condition, loop or function of a script, or behind its end; whether it was run is unknown"
	maybePrompt = "a comment, or a command at a prompt; whether it was run is unknown"
)

// isCertain reports whether a shell runs a command for sure behind others of its line, if those succeed that change something. A rule that a
// check does not find is added, and one that it finds exists.
func isCertain(before []shellCommand, operator string) bool {
	if operator == ";" || len(before) == 0 {
		return true
	}
	last := before[len(before)-1]
	switch {
	case operator == "||":
		return checksRule.MatchString(last.text) && isCertain(before[:len(before)-1], last.operator)
	case mentions(last.text) == nil && !always.MatchString(last.text):
		return false
	}
	return isCertain(before[:len(before)-1], last.operator)
}

// maybeRun notes a command of which it is unknown whether it was run, if it changes something.
func (s *scanner) maybeRun(command string) bool {
	of := mentions(command)
	if of != nil {
		s.reset()
		s.noteChange(command, of)
		s.changes[len(s.changes)-1].doubt = maybeScript
		if s.mayEnd > 0 {
			s.changes[len(s.changes)-1].doubt = fmt.Sprintf("behind line %d, which ends the script if it fails (set -e); whether it was run is unknown", s.mayEnd)
		}
	}
	return of != nil
}

// control takes the lines of a script's control structures, and the commands in them that change something: whether they were run is unknown.
func (s *scanner) control(line string) bool {
	if exits.MatchString(line) && s.structures == 0 && strings.HasPrefix(s.lines[0].text, "#!") {
		s.structures++ // which nothing closes
	}
	switch {
	case onOneLine.MatchString(line):
		return s.maybeRun(line)
	case opensStructure.MatchString(line):
		s.structures++
	case closesStructure.MatchString(line), s.structures > 0 && braceEnd.MatchString(line):
		if s.structures == 0 {
			s.reset()
			s.NotRead(s.at, "the end of a condition or loop whose beginning is not shown")
			return true
		}
		s.structures--
	case s.structures == 0 && s.mayEnd > 0:
		return s.maybeRun(line)
	case s.structures == 0:
		return false
	case inStructure.MatchString(line) && concerns(line) == nil:
	default:
		return s.maybeRun(line)
	}
	s.reset()
	s.NoEffect(s.at, "control structure of a script")
	return true
}

// shellOptions takes the options of a script's shell that change nothing but what happens behind a command that fails. Such a command is a
// change that is assumed to be done, a line that was not read, or one that checkErrexit notes.
func (s *scanner) shellOptions(line string) bool {
	if !setsOptions.MatchString(line) {
		return false
	}
	if m := setsErrexit.FindStringSubmatch(line); m != nil {
		s.errexit = m[1] == "-"
	}
	s.NoEffect(s.at, "options of the shell")
	return true
}

// checkErrexit notes a command without effect that may fail and so end the script. Prose is a command where the text is a script.
func (s *scanner) checkErrexit(line string) {
	isScript := strings.HasPrefix(s.lines[0].text, "#!")
	if s.at == 1 && runsErrexit.MatchString(line) {
		s.errexit = true
	}
	as := s.Account[s.at-1].As
	if s.errexit && s.mayEnd == 0 && s.structures == 0 && (as == "a command that changes nothing" || as == "prose" && isScript) &&
		!always.MatchString(line) && !succeeds.MatchString(line) {
		s.mayEnd = s.at
	}
}
