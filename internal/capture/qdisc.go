package capture

import (
	"encoding/json"
	"fmt"
	"slices"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/snapshot"
)

// Qdisc is a queueing discipline of a link (tc(8)). A list of them is the content of qdiscs.json.
type Qdisc struct {
	Link   string `json:"link"`
	Kind   string `json:"kind"`   // "htb"
	Handle string `json:"handle"` // "1:"
	Parent string `json:"parent"` // "root", or a handle
	// Settings are those of the kind in QdiscKinds, as far as the kernel reports them.
	Settings map[string]uint32 `json:"settings,omitempty"`
	Filters  []Filter          `json:"filters,omitempty"`
}

// Filter is a filter of tc. Only the first one on each side of a link is recorded.
type Filter struct {
	Kind       string `json:"filter"` // "u32"
	Parent     string `json:"parent"` // handle of the qdisc or class
	Preference uint32 `json:"pref"`
	Out        bool   `json:"out,omitempty"` // gets the packets that leave by the link, not those that come in
	// Program is the BPF program of a filter that has one.
	Program *snapshot.Program `json:"program,omitempty"`
}

// QdiscKind describes a kind of qdisc that lets a packet into an empty queue pass unchanged.
type QdiscKind struct {
	HasFilters bool // filters may be attached to it
	HasClasses bool // and to its classes
	// Settings are conditions for a packet to pass.
	Settings []QdiscSetting
}

// QdiscSetting is a setting that decides whether a packet passes.
type QdiscSetting struct {
	Name string
	// Attribute is its number in TCA_OPTIONS. With 0 the options are a struct, and the setting stands at Offset in it.
	Attribute uint16
	Offset    int
	passes    func(value uint32) bool
}

// maxPacket bounds the size of one packet, in bytes.
const maxPacket = 1 << 16

func hasRoomForPackets(limit uint32) bool { return limit > 0 }
func hasRoomForBytes(limit uint32) bool   { return limit >= maxPacket }
func isOff(value uint32) bool             { return value == 0 }

// QdiscKinds are the kinds that pass a packet on if their queue is empty, no filter takes the packet, and the settings allow it. The reason
// is the function "enqueue" of net/sched/sch_KIND.c in the kernel's source; noqueue and pfifo_fast are in sch_generic.c, the kinds of fifo
// in sch_fifo.c. Attribute numbers come from include/uapi/linux/pkt_sched.h. Any other kind may drop, change or redirect a packet: netem,
// plug, tbf (a packet larger than its burst), drr, hfsc and qfq (a packet without a class), and kinds that are BPF programs.
var QdiscKinds = map[string]QdiscKind{
	"noqueue": {}, "pfifo_fast": {}, "mq": {}, "mqprio": {}, // the children of the latter two are separate qdiscs
	"clsact": {}, "ingress": {}, // which have filters alone
	"pfifo":           {Settings: []QdiscSetting{{Name: "limit", passes: hasRoomForPackets}}},
	"pfifo_head_drop": {Settings: []QdiscSetting{{Name: "limit", passes: hasRoomForPackets}}},
	"bfifo":           {Settings: []QdiscSetting{{Name: "limit", passes: hasRoomForBytes}}},
	"skbprio":         {Settings: []QdiscSetting{{Name: "limit", passes: hasRoomForPackets}}},
	"fq": {Settings: []QdiscSetting{
		{Name: "limit", Attribute: 1, passes: hasRoomForPackets}, {Name: "flow_limit", Attribute: 2, passes: hasRoomForPackets}}},
	"codel": {Settings: []QdiscSetting{{Name: "limit", Attribute: 2, passes: hasRoomForPackets}}},
	"pie":   {Settings: []QdiscSetting{{Name: "limit", Attribute: 2, passes: hasRoomForPackets}}},
	"hhf":   {Settings: []QdiscSetting{{Name: "limit", Attribute: 1, passes: hasRoomForPackets}}},
	"fq_codel": {HasFilters: true, Settings: []QdiscSetting{
		{Name: "limit", Attribute: 2, passes: hasRoomForPackets}, {Name: "memory_limit", Attribute: 9, passes: hasRoomForBytes}}},
	"fq_pie": {HasFilters: true, Settings: []QdiscSetting{
		{Name: "limit", Attribute: 1, passes: hasRoomForPackets}, {Name: "memory_limit", Attribute: 8, passes: hasRoomForBytes}}},
	"sfq":    {HasFilters: true, Settings: []QdiscSetting{{Name: "limit", Offset: 8, passes: hasRoomForPackets}}},
	"cake":   {HasFilters: true, Settings: []QdiscSetting{{Name: "wash", Attribute: 13, passes: isOff}}}, // which clears the DSCP
	"prio":   {HasFilters: true},
	"multiq": {HasFilters: true},
	"ets":    {HasFilters: true},
	"htb": {HasFilters: true, HasClasses: true, Settings: []QdiscSetting{
		{Name: "direct_qlen", Attribute: 5, passes: hasRoomForPackets}}},
}

// text returns the qdisc in words, with more about it: "qdisc htb 1: (root)".
func (q *Qdisc) text(more string) string {
	at := q.Parent
	if at != "root" {
		at = "parent " + at
	}
	return fmt.Sprintf("qdisc %s %s (%s%s)", q.Kind, q.Handle, at, more)
}

// effect describes the qdisc if it may drop, change or redirect a packet; it returns "" for one that only queues.
func (q *Qdisc) effect() string {
	kind, known := QdiscKinds[q.Kind]
	if !known {
		return q.text("")
	}
	for _, s := range kind.Settings {
		switch value, told := q.Settings[s.Name]; {
		case !told:
			return q.text(", " + s.Name + " unknown")
		case !s.passes(value):
			return q.text(fmt.Sprintf(", %s %d", s.Name, value))
		}
	}
	return ""
}

// loadQdiscs gives links the filters and qdiscs whose effect on a packet is unknown. XDP and tcx come before them.
func loadQdiscs(l *Loader, text []byte) error {
	var all []Qdisc
	if err := json.Unmarshal(text, &all); err != nil {
		return err
	}
	for i := range all {
		q := &all[i]
		for _, f := range q.Filters {
			what := fmt.Sprintf("filter %s (preference %d, parent %s) of qdisc %s %s", f.Kind, f.Preference, f.Parent, q.Kind, q.Handle)
			if f.Program != nil {
				what = f.Program.String()
			}
			l.attach(q.Link, f.Out, what)
		}
		if what := q.effect(); what != "" {
			l.attach(q.Link, true, what)
		}
	}
	return nil
}

// attach notes what gets the packets on one side of a link, unless something else gets them before.
func (l *Loader) attach(name string, out bool, what string) {
	i := slices.IndexFunc(l.Host.FIB.Links, func(link fib.Link) bool { return link.Name == name })
	if i < 0 {
		return
	}
	side := &l.Host.FIB.Links[i].Program
	if out {
		side = &l.Host.FIB.Links[i].ProgramOut
	}
	if *side == "" {
		*side = what
	}
}
