package pastedtext

import (
	"regexp"
	"slices"
	"strings"
)

// hashMeaning says what "#" in front of a command stands for.
type hashMeaning uint8

const (
	hashUnclear hashMeaning = iota
	hashPrompt
	hashComment
)

// scriptBegin begins a script, or shows that lines are of one.
var scriptBegin = regexp.MustCompile(`^#!\s*/|<<-?\s*['"\\]?[A-Za-z]\w*['"]?(?:\s*[>|].*)?$|` +
	`^(?:if|for|while|until|case)\s.*(?:;\s*(?:then|do)|\sin)$|^(?:then|else|do|fi|done|esac)$`)

// hashed returns the command behind "# ".
func hashed(line string) (command string, is bool) {
	if !strings.HasPrefix(line, "# ") {
		return line, false
	}
	return commandOf(line)
}

// hashMeanings decides for each line "# COMMAND" whether the command was run. In a script the line is a comment. "#" is a prompt in a text
// that shows what such a command printed, or nothing but such commands. Bare commands or other prompts leave it unclear.
func hashMeanings(lines []textLine) map[int]hashMeaning {
	all := map[int]hashMeaning{}
	script, bare, others, output, answered := false, false, false, false, false
	for i, line := range lines {
		command, is := hashed(line.text)
		switch {
		case is && script:
			all[i+1] = hashComment
		case is:
			all[i+1] = hashUnclear
			next := ""
			for j := i + 1; j < len(lines) && next == ""; j++ {
				next = lines[j].text
			}
			script = scriptBegin.MatchString(command)
			answered = answered || len(concerns(command)) == 0 && (beginsState(next) && !beginsChange(next) || strings.HasPrefix(next, "#!"))
		case scriptBegin.MatchString(line.text):
			script = true
		case strings.HasPrefix(line.text, "$ ") || namedPrompt.MatchString(line.text):
			script, others = false, true
		case beginsChange(line.text):
			bare = true
		case beginsState(line.text):
			output = true
		}
	}
	for n, meaning := range all {
		switch {
		case meaning == hashComment && answered:
			all[n] = hashUnclear
		case meaning == hashUnclear && !bare && (answered || !others && !output):
			all[n] = hashPrompt
		}
	}
	return all
}

// beginsChange reports whether a line is a command that changes state, without a prompt.
func beginsChange(line string) bool {
	if line == "" || line[0] == '\'' || line[0] == '"' {
		return false
	}
	return slices.ContainsFunc(changes, func(c changer) bool {
		at := []int(nil)
		if slices.ContainsFunc(c.words, func(word string) bool { return strings.Contains(line, word) }) {
			at = c.pattern.FindStringIndex(strings.TrimPrefix(line, "sudo "))
		}
		return at != nil && at[0] == 0
	})
}

// hash takes a line "# COMMAND" of which "#" is not known to be a prompt. A command that lists something is then a heading, or a prompt.
func (s *scanner) hash(line string) bool {
	meaning, is := s.hashes[s.at]
	command, _ := hashed(line)
	switch of := concerns(command); {
	case !is || meaning == hashPrompt || meaning == hashUnclear && len(of) == 0:
		return false
	case meaning == hashComment:
		s.NoEffect(s.at, "comment")
	default:
		s.reset()
		s.noteChange(command, of)
		s.changes[len(s.changes)-1].doubt = maybePrompt
	}
	return true
}
