package cli

import (
	"cmp"
	"strings"
	"testing"
)

// TestHints: commands in a text run as printed, whoever reads them and whichever lab is meant. Other words stay.
func TestHints(t *testing.T) {
	type test struct{ name, command, text, want string }
	for _, c := range []test{
		{"the lab that is meant without a name", "status", "x; 'packetwalk up' repairs it", "x; 'SELF up' repairs it"},
		{"a lab by name", "logs --name a b", "see 'packetwalk status -o wide'", "see 'SELF status --name a -o wide'"},
		{"a lab by name, with =", "walk --from x --name=a", "'packetwalk kubectl get pods -A' lists them", "'SELF kubectl --name a get pods -A' lists them"},
		{"a lab that the text names", "up --name a", "'packetwalk down --name b' removes it", "'SELF down --name b' removes it"},
		{"all labs", "down --name a", "'packetwalk down --all' removes them", "'SELF down --all' removes them"},
		{"after a colon", "status --name a", "its log: packetwalk logs lab", "its log: SELF logs --name a lab"},
		{"in brackets", "up --name a", "first ('packetwalk kubectl get svc' names it)", "first ('SELF kubectl --name a get svc' names it)"},
		{"several", "up --name a", "'packetwalk up' or 'packetwalk down'", "'SELF up --name a' or 'SELF down --name a'"},
		{"kubectl's own --name", "kubectl get pods --name a", "'packetwalk up'", "'SELF up'"},
		{"kubectl's lab", "kubectl --name a get pods", "'packetwalk up'", "'SELF up --name a'"},
		{"a flag of another command", "ssh vm -- x --name a", "'packetwalk up'", "'SELF up'"},
		{"a command of all labs", "up --name a", "load it: packetwalk image load web:v1", "load it: SELF image load web:v1"},
		{"a pipe", "up", "docker save web | packetwalk image load -", "docker save web | SELF image load -"},
		{"the plugin", "walk --name a", "'kubectl packetwalk capture' does it", "'kubectl packetwalk capture' does it"},
		{"words", "walk --name a", "use the packetwalk that made it: packetwalk needs root; not a packetwalk capture", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := hintsOf(rootCommand(Streams{}), strings.Fields(c.command))
			h.self = "SELF"
			if got := h.complete(c.text); got != cmp.Or(c.want, c.text) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
