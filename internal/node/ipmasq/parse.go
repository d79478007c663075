package ipmasq

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"
)

// Severity says what a problem means for the configuration that has it.
type Severity string

// Errors keep a configuration from being applied; warnings do not.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
)

// Problem is one thing that is wrong, or likely not what its author wants.
type Problem struct {
	Origin
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy"` // what to write instead
}

// String returns the problem without its ConfigMap: an Event or a log line names that by itself.
func (p Problem) String() string {
	at := ""
	if p.Key != "" {
		at = "key " + p.Key
		if p.Entry != "" {
			at += ", " + p.Entry
		}
		at += ": "
	}
	return at + p.Message + "; " + p.Remedy
}

// Options say how files are read.
type Options struct {
	Form Form
	IPv6 bool // ranges of IPv6 are possible, as with upstream's --enable-ipv6
}

// Parse reads the files of all ConfigMaps, in whatever order they come. With any error among the problems the configuration is nil. It
// never fails otherwise, and never panics, whatever the text.
//
// Beyond upstream: every error is found, not the first; an empty entry is an error (upstream v1 keeps for it what the defaults have in its
// place, because it decodes over them); resyncInterval has a least value; an IPv4 range in IPv6's clothes is refused, not handed to
// iptables; keys that are not read, and an empty list, are warned about.
func Parse(o Options, files []File) (*Config, []Problem) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b File) int { return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.ConfigMap, b.ConfigMap)) })
	p := &parser{Options: o}
	c := p.config(files)
	slices.SortStableFunc(p.problems, func(a, b Problem) int { return cmp.Compare(a.ConfigMap, b.ConfigMap) })
	if slices.ContainsFunc(p.problems, func(p Problem) bool { return p.Severity == Error }) {
		return nil, p.problems
	}
	return c, p.problems
}

type parser struct {
	Options
	problems []Problem
}

func (p *parser) add(severity Severity, at Origin, remedy, format string, args ...any) {
	p.problems = append(p.problems, Problem{Origin: at, Severity: severity, Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

func (p *parser) config(files []File) *Config {
	var read []File
	for _, f := range files {
		at := Origin{ConfigMap: f.ConfigMap, Key: f.Key}
		switch {
		case p.Form == FormV1 && f.Key != FileV1:
			p.add(Warning, at, "write the key "+FileV1, "is not read")
		case p.Form == FormV1 && len(read) > 0:
			p.add(Warning, at, "put all into one", "is not read: %s has the key too, and form v1 has one file", read[0].ConfigMap)
		case !strings.HasPrefix(f.Key, filePrefix):
			p.add(Warning, at, "write a key that starts with "+filePrefix, "is not read")
		default:
			read = append(read, f)
		}
	}
	if len(read) == 0 {
		return defaults()
	}
	if p.Form == FormV1 {
		c := defaults()
		c.Default = false
		p.file(read[0], c)
		return c
	}
	return p.unite(read)
}

// unite reads each file by itself and adds up what they say.
func (p *parser) unite(files []File) *Config {
	all := &Config{CIDRLimit: DefaultCIDRLimit, ResyncInterval: DefaultResyncInterval}
	at := map[netip.Prefix]int{}
	for _, f := range files {
		c := &Config{CIDRLimit: DefaultCIDRLimit}
		p.file(f, c)
		for _, r := range c.NonMasquerade {
			if i, ok := at[r.Prefix]; ok {
				all.NonMasquerade[i].From = append(all.NonMasquerade[i].From, r.From...)
				continue
			}
			at[r.Prefix] = len(all.NonMasquerade)
			all.NonMasquerade = append(all.NonMasquerade, r)
		}
		all.MasqLinkLocal.or(c.MasqLinkLocal)
		all.MasqLinkLocalIPv6.or(c.MasqLinkLocalIPv6)
	}
	if len(all.NonMasquerade) == 0 {
		p.emptied(Origin{ConfigMap: files[0].ConfigMap, Key: files[0].Key}, all)
	}
	return all
}

// or adds what another file says. The entries that make the result are kept: those that say true, or when none does those that say false.
func (s *Switch) or(other Switch) {
	switch {
	case other.On && !s.On:
		*s = other
	case other.On == s.On:
		s.From = append(s.From, other.From...)
	}
}

// emptied warns of a list without entries, unless something else is wrong: it then is not applied.
func (p *parser) emptied(at Origin, c *Config) {
	if slices.ContainsFunc(p.problems, func(p Problem) bool { return p.Severity == Error }) {
		return
	}
	but := "the node itself"
	if !c.MasqLinkLocal.On {
		but += " and 169.254.0.0/16"
	}
	at.Entry = "nonMasqueradeCIDRs"
	p.add(Warning, at, "write the ranges of the VNet, if that is not what you want",
		"the list is empty: every destination but %s sees the node's address, not the pod's, within the VNet too", but)
}

// file reads one file over c. JSON field names match in any case, as encoding/json has it; of several that match the last in the order of
// the alphabet holds (upstream turns YAML into JSON, which sorts them).
func (p *parser) file(f File, c *Config) {
	at := Origin{ConfigMap: f.ConfigMap, Key: f.Key}
	text, err := yaml.YAMLToJSON([]byte(f.Text))
	if err != nil {
		p.add(Error, at, "write YAML or JSON with a list nonMasqueradeCIDRs", "cannot be parsed: %s",
			oneLine(strings.TrimPrefix(err.Error(), "yaml: ")))
		return
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		p.add(Error, at, "write YAML or JSON with a list nonMasqueradeCIDRs", "is not a mapping of keys")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		p.field(at, name, fields[name], c)
	}
	if p.Form == FormV1 && len(c.NonMasquerade) == 0 {
		p.emptied(at, c)
	}
	if n := len(c.NonMasquerade); n > c.CIDRLimit {
		at.Entry = "nonMasqueradeCIDRs"
		remedy := fmt.Sprintf("write at most %d, or shorter prefixes that hold several", c.CIDRLimit)
		if p.Form == FormV1 {
			remedy = fmt.Sprintf("write at most %d, or a larger cidrLimit", c.CIDRLimit)
		}
		p.add(Error, at, remedy, "%d ranges, more than %d", n, c.CIDRLimit)
	}
}

// keys of a file, and those that form v1 alone has.
var (
	keys   = []string{"nonMasqueradeCIDRs", "masqLinkLocal", "masqLinkLocalIPv6", "cidrLimit", "resyncInterval"}
	keysV1 = keys[3:]
)

func (p *parser) field(at Origin, name string, value json.RawMessage, c *Config) {
	i := slices.IndexFunc(keys, func(k string) bool { return strings.EqualFold(k, name) })
	if i < 0 {
		at.Entry = quote(name)
		p.add(Warning, at, "the keys are "+strings.Join(p.known(), ", "), "is no key, and is not read")
		return
	}
	at.Entry = keys[i]
	if p.Form == FormV2 && slices.Contains(keysV1, keys[i]) {
		p.add(Warning, at, "take it out; the agent's flag --ip-masq-resync-interval sets the interval", "is not read: it is a key of form v1")
		return
	}
	switch keys[i] {
	case "nonMasqueradeCIDRs":
		p.ranges(at, value, c)
	case "masqLinkLocal":
		p.boolean(at, value, &c.MasqLinkLocal)
	case "masqLinkLocalIPv6":
		p.boolean(at, value, &c.MasqLinkLocalIPv6)
	case "cidrLimit":
		if err := json.Unmarshal(value, &c.CIDRLimit); err != nil {
			p.add(Error, at, "write a whole number, such as 64", "%s is not a whole number", quote(string(value)))
		}
	case "resyncInterval":
		p.interval(at, value, c)
	}
}

func (p *parser) known() []string {
	if p.Form == FormV2 {
		return keys[:len(keys)-len(keysV1)]
	}
	return keys
}

func isNull(value json.RawMessage) bool { return string(value) == "null" }

func (p *parser) boolean(at Origin, value json.RawMessage, s *Switch) {
	if isNull(value) { // as if it were not there
		return
	}
	if err := json.Unmarshal(value, &s.On); err != nil {
		p.add(Error, at, "write true or false", "%s is neither true nor false", quote(string(value)))
		return
	}
	s.From = []Origin{at}
}

func (p *parser) interval(at Origin, value json.RawMessage, c *Config) {
	var text string
	const remedy = "write it as 60s"
	if err := json.Unmarshal(value, &text); err != nil || isNull(value) {
		p.add(Error, at, remedy, "%s is not a duration in text", quote(string(value)))
		return
	}
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		p.add(Error, at, remedy, "%s is not a duration", quote(text))
	case d < minResyncInterval:
		p.add(Error, at, remedy, "%s is shorter than %s", quote(text), minResyncInterval)
	default:
		c.ResyncInterval = d
	}
}

// ranges reads nonMasqueradeCIDRs. A key without a value is an empty list.
func (p *parser) ranges(at Origin, value json.RawMessage, c *Config) {
	c.NonMasquerade = nil
	var entries []any
	if err := json.Unmarshal(value, &entries); err != nil {
		p.add(Error, at, "write a list of ranges, one a line after a dash", "is not a list")
		return
	}
	list := at.Entry
	for i, e := range entries {
		at.Entry = fmt.Sprintf("%s[%d]", list, i)
		if prefix, ok := p.entry(at, e); ok {
			c.NonMasquerade = append(c.NonMasquerade, CIDR{Prefix: prefix, From: []Origin{at}})
		}
	}
}

func (p *parser) entry(at Origin, e any) (prefix netip.Prefix, ok bool) {
	text, isText := e.(string)
	switch {
	case e == nil || isText && strings.TrimSpace(text) == "":
		p.add(Error, at, "write a range, such as 10.0.0.0/8, or take the entry out", "the entry is empty")
		return prefix, false
	case !isText:
		p.add(Error, at, "write a range, such as 10.0.0.0/8", "the entry is not text")
		return prefix, false
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		p.add(Error, at, likely(text), "%s is not a range", quote(text))
		return prefix, false
	}
	switch whole := prefix.Masked(); {
	case prefix.Addr().Is4In6():
		p.add(Error, at, "write an IPv4 range", "%s is an IPv4 range written as IPv6", text)
	case prefix != whole:
		p.add(Error, at, "write "+whole.String(), "%s is not aligned: %s has bits set after the first %d", text, prefix.Addr(), prefix.Bits())
	case whole.Addr().Is6() && !p.IPv6:
		p.add(Error, at, "take it out, or give the agent --ip-families=IPv4,IPv6",
			"%s is an IPv6 range, and the agent writes rules for IPv4 only", text)
	default:
		return whole, true
	}
	return prefix, false
}

// likely returns what the author of an entry that is no range may have meant.
func likely(text string) string {
	trimmed := strings.TrimSpace(text)
	if a, err := netip.ParseAddr(trimmed); err == nil && a.Zone() == "" && !a.Is4In6() {
		return "write " + netip.PrefixFrom(a, a.BitLen()).String()
	}
	if p, err := netip.ParsePrefix(trimmed); err == nil {
		return "write " + p.Masked().String() + " without spaces around it"
	}
	return "write it as 10.0.0.0/8"
}

// quote returns a value for a message: not longer than it has to be to be found.
func quote(s string) string {
	const most = 64
	s = strings.Trim(s, `"`)
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

func oneLine(s string) string {
	const most = 200
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// errForm is in the chain of ParseForm's error.
var errForm = errors.New("no such form of configuration")

// ParseForm reads a form's name.
func ParseForm(s string) (Form, error) {
	if f := Form(s); f == FormV1 || f == FormV2 {
		return f, nil
	}
	return "", fmt.Errorf("%q: %w; there are %s and %s", s, errForm, FormV1, FormV2)
}
