package nfttext

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// blocksOf takes a text apart: an empty line ends a block, and a line that begins with "nft " is a command.
func blocksOf(text string) []Block {
	var blocks []Block
	begins := true
	for i, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		command, is := strings.CutPrefix(line, "nft ")
		switch one := (Line{i + 1, command}); {
		case line == "":
			begins = true
		case is:
			blocks, begins = append(blocks, Block{Lines: []Line{one}, Command: true}), true
		case begins:
			blocks, begins = append(blocks, Block{Lines: []Line{one}, Whole: TableLine.MatchString(command)}), false
		default:
			last := &blocks[len(blocks)-1]
			last.Lines = append(last.Lines, one)
		}
	}
	return blocks
}

// loader refuses the lines that have a word, as nft does, and keeps what it was given last.
func loader(refused string, text *string) Loader {
	return func(given []byte) ([]byte, error) {
		*text = string(given)
		var complaints []string
		for i, line := range strings.Split(*text, "\n") {
			if rule, _, _ := strings.Cut(line, ` comment "`); strings.Contains(rule, refused) {
				complaints = append(complaints, fmt.Sprintf("/dev/stdin line %d:3-9: Error: syntax error, unexpected %s", i+1, refused))
			}
		}
		if complaints != nil {
			return nil, errors.New(strings.Join(complaints, "\n"))
		}
		return []byte("{}"), nil
	}
}

// oneLine writes what nft was given without indentation, blanks that follow each other, and line ends.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name, text, want string
		notRead, earlier []int
		marks            []Mark
	}{
		{name: "tables add up", text: "table ip a {\nchain x { }\n}\n\ntable inet b {\nchain y { }\n}\n", want: "table ip a { chain x { } } table inet b { chain y { } }"},
		{name: "without a family", text: "table a {\nchain x { }\n}\n", want: "table ip a { chain x { } }"},
		{name: "in one line", text: "table ip a { chain x { drop } }\n", want: "table ip a { chain x { drop } }"},
		{name: "a chain shown twice", text: "table ip a {\nchain x {\naccept\n}\n}\n\ntable ip a {\nchain x {\ndrop\n}\n}\n",
			want: "table ip a { chain x { drop } }", earlier: []int{2, 3, 4}},
		{name: "another chain of a table", text: "table ip a {\nchain x { }\n}\n\ntable ip a {\nchain y { }\n}\n", want: "table ip a { chain x { } chain y { } }"},
		{name: "the end is missing", text: "table ip a {\nchain x {\ndrop\n", want: `table ip a { chain x { drop counter comment "packetwalk cannot read: 0" } }`,
			marks: []Mark{{0, "lines are left out here", "lines are left out here", "lines are left out here"}}},
		{name: "a chain alone", text: "chain x {\ntype nat hook postrouting priority 100;\nip saddr 10.0.0.0/8 masquerade\n}\n",
			want: "table ip nat { chain x { type nat hook postrouting priority 100; ip saddr 10.0.0.0/8 masquerade } }"},
		{name: "a chain alone that nothing calls", text: "chain x {\ndrop\n}\n", want: "table inet unnamed { }", notRead: []int{2}},
		{name: "a dormant table", text: "table ip a {\nflags dormant\nchain x {\ntype filter hook forward priority 0; policy drop;\n}\n}\n",
			want: "table ip a { flags dormant chain x { } }"},
		{name: "a command", text: "table ip a {\nchain x { }\n}\nnft add rule ip a x drop\n", want: "table ip a { chain x { } } add rule ip a x drop"},
		{name: "a command without its chain", text: "nft add rule ip a x drop\n", want: "table ip a { }", notRead: []int{1}},
		{name: "a command for a chain of iptables", text: "nft add rule ip nat POSTROUTING masquerade\n",
			want: "table ip nat { chain POSTROUTING { type nat hook postrouting priority 100; policy accept; } } add rule ip nat POSTROUTING masquerade"},
		{name: "a command above its chain", text: "table ip a {\n}\nnft add rule ip a x drop\n\ntable ip a {\nchain x {\ndrop\n}\n}\n",
			want: "table ip a { chain x { drop } }", earlier: []int{3}},
		{name: "names of priorities", text: "table ip a {\nchain x { type nat hook output priority dstnat + 5; }\n}\n\ntable bridge b {\nchain x { type filter hook output priority filter; }\n}\n",
			want: "table ip a { chain x { type nat hook output priority -95; } } table bridge b { chain x { type filter hook output priority -200; } }"},
		{name: "an interface's index", text: "table ip a {\nchain x {\niif \"eth0\" drop\n}\n}\n", want: `table ip a { chain x { iifname "eth0" drop } }`},
		{name: "a match of iptables", text: "table ip a {\nchain x {\ntcp dport 80 xt match \"foo\" drop\n}\n}\n",
			want:  `table ip a { chain x { tcp dport 80 drop comment "packetwalk cannot read: 0" } }`,
			marks: []Mark{{3, `tcp dport 80 xt match "foo" drop`, `xt match "foo"`, ""}}},
		{name: "MASQUERADE of iptables", text: "table ip a {\nchain x {\nip saddr 10.0.0.0/8 xt target \"MASQUERADE\"\n}\n}\n",
			want: "table ip a { chain x { ip saddr 10.0.0.0/8 masquerade } }"},
		{name: "a target of iptables", text: "table ip a {\nchain x {\nip saddr 10.0.0.1 xt target \"TEE\"\n}\n}\n",
			want:  `table ip a { chain x { ip saddr 10.0.0.1 counter comment "packetwalk cannot read: 0" } }`,
			marks: []Mark{{3, `ip saddr 10.0.0.1 xt target "TEE"`, "", `xt target "TEE"`}}},
		{name: "a flowtable", text: "table ip a {\nflowtable f {\nhook ingress priority 0\n}\nchain x {\nip protocol tcp flow add @f\n}\n}\n",
			want:  `table ip a { chain x { ip protocol tcp comment "packetwalk cannot read: 0" } }`,
			marks: []Mark{{6, "ip protocol tcp flow add @f", "flow add @f", ""}}},
		{name: "a refused effect", text: "table ip a {\nchain x {\ntcp dport 80 BAD drop\ntcp dport 443 log BAD accept\n}\n}\n",
			want: `table ip a { chain x { drop comment "packetwalk cannot read: 2" tcp dport 443 accept comment "packetwalk cannot read: 1" } }`},
		{name: "a refused rule", text: "table ip a {\nchain x {\nBAD\n}\n}\n", want: `table ip a { chain x { counter comment "packetwalk cannot read: 0" } }`,
			marks: []Mark{{3, "BAD", "BAD", "BAD"}}},
		{name: "a refused set", text: "table ip a {\nset s {\ntype BAD\n}\nchain x {\ndrop\n}\n}\n", want: "table ip a { chain x { drop } }", notRead: []int{2, 3, 4}},
		{name: "a refused table", text: "table ip BAD {\nchain x {\ndrop\n}\n}\n", notRead: []int{2, 3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var given string
			r, err := Read(blocksOf(c.text), loader("BAD", &given))
			if err != nil {
				t.Fatal(err)
			}
			if got := oneLine(given); got != c.want {
				t.Errorf("nft was given\n%s\nwant\n%s", got, c.want)
			}
			var notRead []int
			for _, l := range r.NotRead {
				notRead = append(notRead, l.Line)
			}
			if !slices.Equal(notRead, c.notRead) || !slices.Equal(r.Earlier, c.earlier) {
				t.Errorf("not read %v, want %v; earlier %v, want %v", notRead, c.notRead, r.Earlier, c.earlier)
			}
			if c.marks != nil && !slices.Equal(r.Marks, c.marks) {
				t.Errorf("marks %+v, want %+v", r.Marks, c.marks)
			}
			for i := range r.Marks {
				if m := r.MarkOf(fmt.Sprintf("%s%d", markText, i)); m != &r.Marks[i] {
					t.Errorf("mark %d is not found by its comment", i)
				}
			}
			if r.MarkOf("another comment") != nil || r.MarkOf(markText+"99") != nil || r.MarkOf(markText+"-1") != nil {
				t.Error("a comment of another has a mark")
			}
		})
	}
}

// TestReadFails: what nft does not load at all is an error.
func TestReadFails(t *testing.T) {
	blocks := blocksOf("table ip a {\n}\n")
	for name, nft := range map[string]Loader{
		"no nft":          nil,
		"another error":   func([]byte) ([]byte, error) { return nil, errors.New("killed") },
		"a line too many": func([]byte) ([]byte, error) { return nil, errors.New("line 99:1-2: Error: x") },
		"always an error": func([]byte) ([]byte, error) { return nil, errors.New("line 1:1-2: Error: x") },
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := Read(blocks, nft); err == nil {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestBraces(t *testing.T) {
	for line, want := range map[string]int{
		"table ip a {": 1, "}": -1, "chain x { drop }": 0, `comment "{"`: 0, "elements = { 1, # {": 1, `log prefix "#" {`: 1, "": 0,
	} {
		if got := Braces(line); got != want {
			t.Errorf("%q: %d, want %d", line, got, want)
		}
	}
}

func TestSplit(t *testing.T) {
	for rule, want := range map[string][]string{
		"tcp dport 80 counter packets 1 bytes 2 accept":           {"tcp dport 80", "accept"},
		`ip saddr { 10.0.0.1, 10.0.0.2 } log prefix "drop " drop`: {"ip saddr { 10.0.0.1, 10.0.0.2 }", `log prefix "drop "`, "drop"},
		`meta mark set 0x1 return comment "accept"`:               {"", "meta mark set 0x1", "return"},
		"tcp dport 80":                   {"tcp dport 80"},
		"tcp dport vmap { 80 : accept }": {"tcp dport vmap { 80 : accept }"},
	} {
		tests, does := split(rule)
		if got := append([]string{tests}, does...); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", rule, got, want)
		}
	}
}

// FuzzRead: whatever is pasted and whatever nft refuses of it, reading ends, and lines that were not read are of the text.
func FuzzRead(f *testing.F) {
	f.Add("table ip a {\nchain x {\nBAD drop\n}\n}\n\nchain y {\njump x\n}\nnft add rule ip a x drop\n", "BAD")
	f.Add("table ip a { chain x { type nat hook output priority dstnat; } }\n}\n}\n", "chain")
	f.Add("define a = 1\n\ntable ip a {\nflowtable f {\nset s {\n", "}")
	f.Fuzz(func(t *testing.T, text, refused string) {
		blocks := slices.DeleteFunc(blocksOf(text), func(b Block) bool { return b.Command && !CommandLine.MatchString(b.Lines[0].Text) })
		if len(blocks) == 0 || refused == "" {
			return
		}
		var given string
		r, err := Read(blocks, loader(refused, &given))
		if err != nil {
			return
		}
		last := strings.Count(text, "\n") + 1
		for _, l := range r.NotRead {
			if l.Line < 1 || l.Line > last {
				t.Errorf("line %d of %d is not read", l.Line, last)
			}
		}
		for _, m := range r.Marks {
			if m.Line < 0 || m.Line > last || m.Test+m.Effect == "" {
				t.Errorf("mark %+v", m)
			}
		}
	})
}

// TestUncalled: where the chains of a table are called that is not shown whole is unknown.
func TestUncalled(t *testing.T) {
	for text, want := range map[string][]int{
		"table ip a {\nchain x {\ndrop\n}\nchain y {\n# nothing\n}\n}\n":                                   {3},
		"table ip a {\nchain x {\ndrop\n}\nchain y {\ntype filter hook forward priority 0\njump x\n}\n}\n": nil,
		"table ip a {\nchain x {\ndrop\n}\n}\n\nnft add rule ip filter FORWARD jump x\n":                   nil,
		"table ip a {\nflags dormant\nchain x {\ndrop\n}\n}\n":                                             nil,
		"table ip a {\ninclude \"/etc/passwd\"\n}\n":                                                       {2},
		"table ip a {\n(12 chains omitted)\n}\n":                                                           {2},
	} {
		blocks := blocksOf(text)
		for i := range blocks {
			blocks[i].Whole = false
		}
		var given string
		r, err := Read(blocks, loader("include", &given))
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, l := range r.NotRead {
			got = append(got, l.Line)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: not read %v, want %v", text, got, want)
		}
	}
}
