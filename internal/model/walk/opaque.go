package walk

import (
	"fmt"

	"packetwalk.dev/internal/model/fib"
	"packetwalk.dev/internal/model/snapshot"
)

// What is not walked on the far side of a link may answer a question, or be the station that a frame is for.

// notWalked returns why the host behind a link is unknown, for a link of m that is up and whose far end is not known; "" where that leads
// nowhere, or out of the snapshot.
func (m *machine) notWalked(l *fib.Link) string {
	switch {
	case !l.HasCarrier() || l.Kind == "dummy" || l.Kind == "" || l.Kind == "veth":
		return ""
	case l.Kind == "vxlan":
		return "what is asked through " + l.Name + ", of kind vxlan, is not walked"
	}
	return fmt.Sprintf("interface %s is of %s, which is not walked", l.Name, kindOf(l))
}

func kindOf(l *fib.Link) string {
	if l.Kind == "" {
		return "a kind that is not known"
	}
	return "kind " + l.Kind
}

// enslaved tells to what a link belongs that is no bridge; "" where it belongs to none.
func (m *machine) enslaved(l *fib.Link) string {
	master := m.FIB.Link(l.Master)
	if master == nil || master.Kind == "bridge" {
		return ""
	}
	return fmt.Sprintf("interface %s belongs to %s of %s, which is not walked", l.Name, master.Name, kindOf(master))
}

// programAt tells which program gets what passes a link of m in one direction; "" where none does, as far as that is known.
func (m *machine) programAt(l *fib.Link, out bool) string {
	if why := m.whyUnread(snapshot.Programs); why != "" {
		return why
	}
	switch {
	case m.Sandbox != "":
		return m.inSandbox()
	case l.Kind == "netkit":
		return m.netkit(l, out)
	case out && l.ProgramOut != "":
		return fmt.Sprintf("what leaves by %s gets %s, whose effect is unknown", l.Name, l.ProgramOut)
	case !out && l.Program != "":
		return fmt.Sprintf("what comes in by %s gets %s first, whose effect is unknown", l.Name, l.Program)
	case !m.isKnown(snapshot.Programs):
		m.assumeMissing(snapshot.Programs, "programs on its links unknown; assuming there are none")
	}
	return ""
}

// netkit names the program of a netkit link that gets what passes the link in one direction. The kernel tells it at one of the two ends.
func (m *machine) netkit(l *fib.Link, out bool) string {
	program := func(l *fib.Link, out bool) string {
		if out {
			return l.ProgramOut
		}
		return l.Program
	}
	name := program(l, out)
	if _, end := m.otherEnd(l.Name); name == "" && end != nil {
		name = program(end, !out)
	}
	if name == "" {
		return fmt.Sprintf("what passes %s gets the programs of netkit, which are not read", l.Name)
	}
	return fmt.Sprintf("what passes %s gets %s, whose effect is unknown", l.Name, name)
}

// inSandbox says why what happens in a pod's sandbox is unknown.
func (m *machine) inSandbox() string {
	return fmt.Sprintf("the pod has, or may have, a separate network stack (%s), which is not read", m.Sandbox)
}

// whyHidden returns why an unknown station may be behind a link, or "" if none can be. depth bounds rings of bridges.
func (m *machine) whyHidden(l *fib.Link, depth int) string {
	peer, ok := m.peer(l.Name)
	if !ok {
		return m.notWalked(l)
	}
	far, end := m.otherEnd(l.Name)
	if far == nil {
		return "the state of " + peer.Host + " is not read"
	}
	if end == nil || !l.HasCarrier() || !end.HasCarrier() || depth == 0 {
		return ""
	}
	for _, why := range [...]string{m.programAt(l, true), far.programAt(end, false), far.enslaved(end)} {
		if why != "" {
			return why
		}
	}
	for _, p := range far.FIB.Ports(end.Master) {
		if why := far.whyHidden(p, depth-1); p.Name != end.Name && why != "" {
			return why
		}
	}
	return ""
}
