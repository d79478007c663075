package podspec

import "strings"

// Expand replaces $(NAME) in a command, an argument or a variable by the variable's value (core/v1, Container.Command); an unknown one
// stays as it is and $$ is a dollar sign.
func Expand(s string, vars map[string]string) string {
	var b strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 || i+1 == len(s) {
			return b.String() + s
		}
		b.WriteString(s[:i])
		s = s[i:]
		end := strings.IndexByte(s, ')')
		switch {
		case s[1] == '$':
			b.WriteByte('$')
			s = s[2:]
		case s[1] == '(' && end > 0:
			if v, ok := vars[s[2:end]]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			b.WriteString(s[:2])
			s = s[2:]
		}
	}
}
