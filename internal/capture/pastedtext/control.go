package pastedtext

import "regexp"

// The control structures of a shell's script (POSIX.1-2024, Shell Command Language, section 2.9.4), as people write them: one keyword
// begins a line.
var (
	// opensStructure ends with the line behind which commands run under a condition, repeatedly, or when a function is called.
	opensStructure = regexp.MustCompile(`^(?:if|for|while|until|select)\s.*;\s*(?:then|do)$|^case\s.*\sin$|^(?:then|do)$|^(?:function\s+)?[\w-]+\s*\(\)\s*\{?$`)
	// inStructure divides one. The label of a case stands alone, or in front of its first command.
	inStructure     = regexp.MustCompile(`^(?:else|elif\s.*|;;&?|\{|\(?[^\s()]+\))$|^(?:if|for|while|until|select)\s`)
	closesStructure = regexp.MustCompile(`^(?:fi|done|esac)(?:\s*[;<>|&].*)?$`)
	braceEnd        = regexp.MustCompile(`^\}(?:\s*[;<>|&].*)?$`)
)

const (
	maybeScript = "a command in a condition, loop or function of a script; whether it was run is unknown"
	maybePrompt = "a comment, or a command at a prompt; whether it was run is unknown"
)

// control takes the lines of a script's control structures, and the commands in them that change something: whether they were run is unknown.
func (s *scanner) control(line string) bool {
	switch {
	case opensStructure.MatchString(line):
		s.structures++
	case closesStructure.MatchString(line), s.structures > 0 && braceEnd.MatchString(line):
		if s.structures == 0 {
			s.reset()
			s.NotRead(s.at, "the end of a condition or loop whose beginning is not shown")
			return true
		}
		s.structures--
	case s.structures == 0:
		return false
	case inStructure.MatchString(line) && concerns(line) == nil:
	default:
		of := mentions(line)
		if of != nil {
			s.reset()
			s.noteChange(line, of)
			s.changes[len(s.changes)-1].doubt = maybeScript
		}
		return of != nil
	}
	s.reset()
	s.NoEffect(s.at, "control structure of a script")
	return true
}
