package redact

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"packetwalk.dev/internal/capture"
	"packetwalk.dev/internal/model/snapshot"
	"packetwalk.dev/internal/syntax/ebtables"
	"packetwalk.dev/internal/syntax/ipset"
	"packetwalk.dev/internal/syntax/iptables"
	"packetwalk.dev/internal/syntax/nftables"
)

// redactor replaces what tells of a network whose it is. When it has learned, it is safe for concurrent use.
type redactor struct {
	addresses *addressMap
	names     *nameMap
	learning  bool // the results are thrown away
}

func (r *redactor) host(h *capture.Raw) *capture.Raw {
	out := &capture.Raw{Name: r.names.host(h.Name), Taken: h.Taken, Kernel: h.Kernel, Machine: r.names.of("node", h.Machine), NetNS: h.NetNS,
		Outputs: map[string]capture.Output{}}
	for _, row := range capture.Dumps {
		o, ok := h.Outputs[row.File]
		if !ok {
			continue
		}
		how := r.reader(row.File)
		data, err := how(o.Data)
		if err != nil {
			data, o.Error = nil, unread(err)
		}
		o.Data, o.Error = data, r.words(o.Error)
		out.Outputs[row.File] = o
	}
	return out // files that this version does not know are left out
}

// unread says that a text is left out. Errors quote the text, which is to be kept back: of them there is the line at most.
func unread(err error) string {
	var at *iptables.ParseError
	if errors.As(err, &at) {
		return fmt.Sprintf("left out: redaction cannot read line %d", at.Line)
	}
	return "left out: redaction cannot read it"
}

// reader chooses who knows the syntax of a file.
func (r *redactor) reader(file string) func([]byte) ([]byte, error) {
	switch {
	case file == capture.SysctlsFile:
		return r.sysctls
	case file == "nft.json":
		return r.nft
	case file == "nft-chains.txt":
		return r.nftChains
	case strings.HasPrefix(file, "conntrack"):
		return r.conntrack
	case file == "ipset.txt":
		return r.ipset
	case strings.HasPrefix(file, "ebtables"):
		return r.ebtables
	case strings.HasSuffix(file, "tables-save.txt"), strings.HasSuffix(file, "tables-legacy-save.txt"):
		return r.iptables
	}
	return r.json
}

// nftChains keeps which chains hang at which links, which is all that is read of the text.
func (r *redactor) nftChains(data []byte) ([]byte, error) {
	chains := map[nftables.ChainName][]string{}
	for n, links := range nftables.Devices(data) {
		n.Table, n.Chain = r.names.table(n.Table), r.names.chain(n.Chain)
		for _, l := range links {
			chains[n] = append(chains[n], r.names.link(l))
		}
	}
	return nftables.AppendDevices(nil, chains), nil
}

// line replaces the addresses of a text.
func (r *redactor) line(s string) string {
	if r.learning {
		r.addresses.keepSpans(s)
		return s
	}
	return r.addresses.text(s)
}

// namedFields are the fields of a connection whose values are names (conntrack_snprintf(3)).
var namedFields = regexp.MustCompile(`\b(helper|secctx|labels)=(\S+)`)

// conntrack redacts connections: addresses, and names that are not the kernel's.
func (r *redactor) conntrack(data []byte) ([]byte, error) {
	text := namedFields.ReplaceAllStringFunc(string(data), func(field string) string {
		name, value, _ := strings.Cut(field, "=")
		if name == "helper" {
			return name + "=" + r.helper(value)
		}
		return name + "=" + r.names.text(value)
	})
	return []byte(r.line(text)), nil
}

// hostKinds are how hosts' names begin that tell whose they are.
var hostKinds = wordSet("node pod netns vm internet container-group container-host")

// words replaces addresses, and names of links and hosts, in what a tool said.
func (r *redactor) words(s string) string {
	if s == "" || r.learning {
		return s
	}
	fields := strings.Split(s, " ")
	hosts := map[string]string{} // with and without their kind
	for _, f := range fields {
		name := strings.Trim(f, quotes)
		if kind, rest, ok := strings.Cut(name, "/"); ok && hostKinds[kind] {
			hosts[name] = r.names.host(name)
			hosts[rest] = strings.TrimPrefix(hosts[name], kind+"/")
		}
	}
	for i, f := range fields {
		name := strings.Trim(f, quotes)
		if changed, ok := hosts[name]; ok {
			fields[i] = strings.Replace(f, name, changed, 1)
		} else if r.names.isLink(name) {
			fields[i] = strings.Replace(f, name, r.names.link(name), 1)
		}
	}
	return r.line(strings.Join(fields, " "))
}

// theirs is what an API server, a proxy or a resolver names in its errors: users, addresses on the web and names of machines. A word with
// dots is one where its last part begins with a letter.
var theirs = regexp.MustCompile(`(?i)(user |namespaces? )"[^"]*"|()"[^"]*[@:./][^"]*"|()\b\w+://\S+|(lookup )[\w.-]+|` +
	`()\b\w[\w-]*(?:\.[\w-]+)*\.[a-z][\w-]+\b`)

// problem returns words of what could not be had from the cluster, without the names in it.
func (r *redactor) problem(s string) string {
	if r.learning || r.names.back != nil {
		return r.words(s)
	}
	return theirs.ReplaceAllString(r.words(s), "$1$4…")
}

// quotes are what stands around a name in a sentence.
const quotes = `"',:;()`

func (r *redactor) sysctls(data []byte) ([]byte, error) {
	var out bytes.Buffer
	for line := range bytes.Lines(data) {
		key, value, ok := strings.Cut(string(line), " = ")
		if !ok {
			return nil, fmt.Errorf("no setting")
		}
		elements := strings.Split(key, ".")
		if len(elements) == 5 && (elements[2] == "conf" || elements[2] == "neigh") {
			link := strings.ReplaceAll(elements[3], "/", ".")
			if link != "all" && link != "default" {
				elements[3] = r.names.link(link)
			}
		}
		// An element is SysctlKey's already, but for the link.
		for i, e := range elements {
			elements[i] = strings.ReplaceAll(e, "/", ".")
		}
		out.WriteString(snapshot.SysctlKey(elements...) + " = " + value)
	}
	return out.Bytes(), nil
}

// iptables replaces what rules test, by what kind of option it is.
func (r *redactor) iptables(data []byte) ([]byte, error) {
	tables, err := iptables.Parse(data)
	if err != nil {
		return nil, err
	}
	out := slices.Clone(capture.GeneratedBy(data)) // which variant printed it
	for i := range tables {
		t := &tables[i]
		t.Name = r.names.table(t.Name)
		own := map[string]bool{}
		for _, c := range t.Chains {
			own[c.Name] = true
		}
		for j := range t.Chains {
			c := &t.Chains[j]
			for k := range c.Rules {
				r.rule(&c.Rules[k], own)
			}
			c.Name = r.names.chain(c.Name)
		}
	}
	return iptables.AppendSave(out, tables), nil
}

func (r *redactor) rule(rule *iptables.Rule, own map[string]bool) {
	if rule.Unknown != "" {
		rule.Unknown = r.command(rule.Unknown, "", own)
		return
	}
	if r.learning && rule.Target.Name == "NETMAP" {
		// Host bits stay as they are when it maps one prefix onto another: they must mean the same in both.
		for _, p := range []iptables.AddressMatch{rule.Source, rule.Destination} {
			if p.Prefix.IsValid() && !p.Not {
				r.addresses.keepPrefix(p.Prefix.String())
			}
		}
		if o, ok := rule.Target.Option("to"); ok {
			r.addresses.keepPrefix(o.Args[0])
		}
	}
	for _, a := range []*iptables.AddressMatch{&rule.Source, &rule.Destination} {
		if a.Prefix.IsValid() && !r.learning {
			a.Prefix = r.addresses.prefix(a.Prefix)
		}
	}
	for _, n := range []*iptables.NameMatch{&rule.In, &rule.Out} {
		n.Name = r.pattern(n.Name, "+")
	}
	for i := range rule.Matches {
		r.options(rule.Matches[i].Module, rule.Matches[i].Options)
	}
	r.options(rule.Target.Name, rule.Target.Options)
	if own[rule.Target.Name] {
		rule.Target.Name = r.names.chain(rule.Target.Name)
	}
}

// pattern replaces the name of a link, or the beginning of names before a wildcard.
func (r *redactor) pattern(name, wildcard string) string {
	before, wild := strings.CutSuffix(name, wildcard)
	switch {
	case name == "" || before == "":
		return name
	case !wild:
		return r.names.link(name)
	case r.learning:
		r.names.learnPrefix(before)
		return name
	}
	return r.names.linkPrefix(before) + wildcard
}

func (r *redactor) options(extension string, options []iptables.Option) {
	for i := range options {
		o := &options[i]
		for j, arg := range o.Args {
			o.Args[j] = r.option(extension, o.Name, j, arg)
		}
	}
}

// splitQuoted cuts a line into words at blanks that stand outside double quotes.
func splitQuoted(s string) []string {
	var words []string
	quoted, escaped, start := false, false, 0
	end := func(i int) {
		if i > start {
			words = append(words, s[start:i])
		}
		start = i + 1
	}
	for i := range len(s) {
		switch {
		case escaped:
			escaped = false
		case s[i] == '\\' && quoted:
			escaped = true
		case s[i] == '"':
			quoted = !quoted
		case (s[i] == ' ' || s[i] == '\t') && !quoted:
			end(i)
		}
	}
	end(len(s))
	return words
}

func (r *redactor) ebtables(data []byte) ([]byte, error) {
	e, err := ebtables.Parse(data)
	if err != nil {
		return nil, err
	}
	for i := range e.Tables {
		t := &e.Tables[i]
		t.Name = r.names.table(t.Name)
		own := map[string]bool{}
		for j := range t.Chains {
			own[t.Chains[j].Name] = true
			t.Chains[j].Name = r.names.chain(t.Chains[j].Name)
		}
		for j := range t.Rules {
			t.Rules[j].Chain, t.Rules[j].Text = r.names.chain(t.Rules[j].Chain), r.command(t.Rules[j].Text, ebtablesOptions, own)
		}
	}
	return []byte(e.String()), nil
}

func (r *redactor) ipset(data []byte) ([]byte, error) {
	sets, err := ipset.Parse(data)
	if err != nil {
		return nil, err
	}
	for i := range sets {
		s := &sets[i]
		s.Name, s.Options = r.names.set(s.Name), r.setOptions(s.Options)
		for j := range s.Members {
			m := &s.Members[j]
			if m.Options = r.setOptions(m.Options); s.Type == "list:set" {
				m.Element = r.names.set(m.Element)
			} else {
				m.Element = r.element(s.Type, m.Element)
			}
		}
	}
	return ipset.Print(sets), nil
}

// setOptions replaces the comment and the addresses among the options of a set or an element.
func (r *redactor) setOptions(text string) string {
	words := splitQuoted(text)
	for i := range words {
		if i > 0 && words[i-1] == "comment" && strings.HasPrefix(words[i], `"`) {
			words[i] = `"` + r.comment(strings.Trim(words[i], `"`)) + `"`
		} else {
			words[i] = r.line(words[i])
		}
	}
	return strings.Join(words, " ")
}

// element replaces the parts of an element of a set: addresses, and the link of hash:net,iface.
func (r *redactor) element(kind, s string) string {
	_, kinds, _ := strings.Cut(kind, ":")
	isLink := strings.Split(kinds, ",")
	parts := strings.Split(s, ",")
	for i, p := range parts {
		if i < len(isLink) && isLink[i] == "iface" {
			name, physical := strings.CutPrefix(p, "physdev:")
			if parts[i] = r.pattern(name, "+"); physical {
				parts[i] = "physdev:" + parts[i]
			}
		} else {
			parts[i] = r.line(p)
		}
	}
	return strings.Join(parts, ",")
}

// comment replaces the names in a comment: those of services and pods, which have a "/" in them, and every word that is not of the comments
// that kube-proxy, the ip-masq-agent, Calico, Azure and Docker are known to write.
func (r *redactor) comment(s string) string {
	if r.learning {
		return s
	}
	words := strings.Split(s, " ")
	first := 0
	if hash, ok := strings.CutPrefix(words[0], "cali:"); ok && r.names.back == nil { // Calico's own of the rule; in nftables mode a semicolon and words follow
		bare := strings.TrimSuffix(hash, ";")
		words[0], first = "cali:"+r.names.hash("rule", bare, 16)+hash[len(bare):], 1
	}
	for i := first; i < len(words); i++ {
		words[i] = r.commentWord(words[i])
	}
	return strings.Join(words, " ")
}

func (r *redactor) commentWord(w string) string {
	bare := strings.TrimRight(strings.TrimLeft(w, `("'`), `.,;:)"'`)
	at := strings.Index(w, bare)
	if bare == "" {
		return w
	}
	if changed := r.addresses.text(bare); changed != bare {
		return w[:at] + changed + w[at+len(bare):]
	}
	name := r.names.service(bare)
	if name == "" {
		name = bare
		if !isNumber(bare) && !knownWords[strings.ToLower(bare)] {
			name = r.names.free(bare)
			if strings.ToUpper(bare) == bare && strings.Contains(bare, "-") {
				name = r.names.chain(bare)
			}
		}
	}
	return w[:at] + name + w[at+len(bare):]
}

func isNumber(s string) bool {
	return strings.Trim(s, "0123456789") == "" || strings.HasPrefix(s, "0x") && strings.Trim(s[2:], "0123456789abcdef") == "" || s == "->"
}
