package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"packetwalk.dev/internal/base/limitio"
)

// MostEarlier limits the bytes of an earlier walk's JSON.
const MostEarlier = 32 << 20

// Earlier holds what a comparison needs of a walk's JSON. A file may be of anyone, so reading is strict: what lacks a field that every walk
// has is refused at once, before more of it takes memory.
type Earlier struct {
	APIVersion  string                  `json:"apiVersion"`
	Kind        string                  `json:"kind"`
	Packet      PacketDoc               `json:"packet"`
	Headline    string                  `json:"headline"`
	Conclusions list[earlierConclusion] `json:"conclusions"`
	Outcomes    list[earlierOutcome]    `json:"outcomes"`
	More        bool                    `json:"more"`
	Assumed     list[earlierAssumption] `json:"assumed"`
}

type earlierConclusion struct{ ConclusionDoc }

type earlierAssumption struct{ AssumedDoc }

type earlierOutcome struct {
	Number             int               `json:"number"`
	ProbabilityDecimal *float64          `json:"probabilityDecimal"`
	Short              string            `json:"short"`
	Results            list[earlierNode] `json:"results"`
	End                *EndDoc           `json:"end"`
	Reply              list[earlierNode] `json:"reply"`
	ReplyEnd           *EndDoc           `json:"replyEnd"`
}

type earlierNode struct {
	Node         string            `json:"node"`
	Observations list[earlierStep] `json:"observations"`
}

type earlierStep struct {
	Stage         string              `json:"stage"`
	ComponentInfo string              `json:"componentInfo"`
	Rule          *RuleDoc            `json:"rule"`
	Owner         string              `json:"owner"`
	Changes       list[earlierChange] `json:"changes"`
	Why           string              `json:"why"`
}

type earlierChange struct{ ChangeDoc }

func (c *earlierConclusion) check() error { return required("text", c.Text) }
func (a *earlierAssumption) check() error { return required("what", a.What) }
func (o *earlierOutcome) check() error {
	if o.End == nil {
		return errors.New(`no field "end"`)
	}
	if p := o.ProbabilityDecimal; p != nil && (*p < 0 || *p > 1) {
		return fmt.Errorf("probability %g", *p)
	}
	return required("short", o.Short)
}
func (n *earlierNode) check() error   { return required("node", n.Node) }
func (s *earlierStep) check() error   { return required("stage", s.Stage) }
func (c *earlierChange) check() error { return required("field", c.Field) }

func required(name, value string) error {
	if value == "" {
		return fmt.Errorf("no field %q", name)
	}
	return nil
}

// list is a JSON array whose elements are checked one by one.
type list[T any] []T

// UnmarshalJSON reads the array up to the first element that is not valid.
func (l *list[T]) UnmarshalJSON(data []byte) error {
	if bytes.Equal(data, []byte("null")) {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if start, err := dec.Token(); err != nil || start != json.Delim('[') {
		return errors.New("not an array")
	}
	for dec.More() {
		var one T
		if err := dec.Decode(&one); err != nil {
			return err
		}
		if err := any(&one).(interface{ check() error }).check(); err != nil {
			return err
		}
		*l = append(*l, one)
	}
	return nil
}

// ReadEarlier reads what 'walk -o json' wrote.
func ReadEarlier(r io.Reader) (*Earlier, error) {
	data, err := limitio.Read(r, MostEarlier)
	if err != nil {
		return nil, err
	}
	return parseEarlier(data)
}

func parseEarlier(data []byte) (*Earlier, error) {
	e := &Earlier{}
	if err := json.Unmarshal(data, e); err != nil {
		return nil, fmt.Errorf("not the JSON of a walk: %w", err)
	}
	if e.Kind != kind || e.APIVersion != apiVersion {
		return nil, fmt.Errorf("not the JSON of a walk: want kind %s of %s", kind, apiVersion)
	}
	if e.Headline == "" {
		return nil, errors.New(`not the JSON of a walk: no field "headline"`)
	}
	return e, nil
}

// step is a step of a way, or its end, as it is compared.
type step struct {
	key  string // equal for steps that did the same
	text string
}

// way returns the steps of the request and its reply.
func (o *earlierOutcome) way() []step {
	all := append(steps(o.Results, ""), end(o.End, ""))
	if o.ReplyEnd != nil {
		all = append(append(all, steps(o.Reply, "the reply on ")...), end(o.ReplyEnd, "the reply on "))
	}
	return all
}

func steps(nodes []earlierNode, prefix string) []step {
	var all []step
	for i := range nodes {
		for j := range nodes[i].Observations {
			s := &nodes[i].Observations[j]
			where := prefix + hostName(nodes[i].Node) + ": "
			all = append(all, step{key: where + s.key(), text: where + s.text()})
		}
	}
	return all
}

// key leaves out what changes without meaning: the numbers and handles of rules, the names of interfaces.
func (s *earlierStep) key() string {
	var b strings.Builder
	switch r := s.Rule; {
	case r != nil:
		fmt.Fprintf(&b, "%s %s %s %s %s %s", s.Stage, r.Family, r.Table, r.Chain, r.Verdict, r.Text)
	case s.Stage == "routed", s.Stage == "conntrack":
		b.WriteString(s.Stage + " " + s.ComponentInfo)
	default:
		b.WriteString(s.Stage)
	}
	for _, c := range s.Changes {
		fmt.Fprintf(&b, " %s %s %s", c.Field, c.From, c.To)
	}
	return b.String()
}

func (s *earlierStep) text() string {
	text := strings.TrimSpace(s.Stage + " " + s.ComponentInfo)
	if s.Rule != nil {
		text = s.ComponentInfo + colon(s.Rule.Text)
	}
	var changes []string
	for _, c := range s.Changes {
		changes = append(changes, c.Field+" "+c.From+" → "+c.To)
	}
	if len(changes) > 0 {
		text += "  [" + strings.Join(changes, ", ") + "]"
	}
	why := s.Owner
	if why == "" && s.Rule == nil && s.Why != s.ComponentInfo {
		why = s.Why
	}
	return text + paren(why)
}

func end(e *EndDoc, prefix string) step {
	text := fmt.Sprintf("%s%s: %s, from %s to %s", prefix, hostName(e.Node), e.Kind, e.Packet.source(), e.Packet.destination())
	if e.Refused && e.Listener == "" {
		text += ", refused"
	}
	text += colon(e.Why)
	return step{key: text, text: text}
}
