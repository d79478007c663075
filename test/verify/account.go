package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"packetwalk.dev/internal/model/walk"
)

// Fate is what became of one packet in the accounts of a world or a campaign: every packet has exactly one.
type Fate string

// The fates.
const (
	Agreed    Fate = "agree"
	Disagreed Fate = "disagree"
	// What follows was not compared, or not as a whole.
	Unmade        Fate = "in worlds that the kernel refuses to make"
	Unsendable    Fate = "no socket can send"
	Endless       Fate = "not sent, as they could go round for ever"
	TooMany       Fate = "have more outcomes than can be compared"
	NotUnderstood Fate = "end at a rule that the model does not understand"
	ErrorLimit    Fate = "met a router that had told their sender of too many errors"
	TableFull     Fate = "were sent while the kernel's neighbour table was full"
	Uncertain     Fate = "had a connection or rules that may be due to what is not walked, or to chance"
)

// mostExcused is the part of a campaign's packets that may have another fate than to agree: one in so many.
const mostExcused = 50

// Account is what the packets of a world, or of many, came to.
type Account struct {
	Fates map[Fate]int
	Steps int // compared
	// Repeated counts the rules that packets met when they were sent again; they were not compared.
	Repeated int
	// Open counts the packets that were compared with several outcomes because of a rule that the model does not understand.
	Open int
	Ends map[walk.EndKind]int // of the packets that were compared, as the kernel had it
}

func newAccount() Account { return Account{Fates: map[Fate]int{}, Ends: map[walk.EndKind]int{}} }

func (a *Account) add(b *Account) {
	for f, n := range b.Fates {
		a.Fates[f] += n
	}
	for e, n := range b.Ends {
		a.Ends[e] += n
	}
	a.Steps += b.Steps
	a.Repeated += b.Repeated
	a.Open += b.Open
}

// Packets counts all packets, whatever became of them.
func (a *Account) Packets() (n int) {
	for _, k := range a.Fates {
		n += k
	}
	return n
}

// Compared counts the packets that were compared with the kernel.
func (a *Account) Compared() int { return a.Fates[Agreed] + a.Fates[Disagreed] + a.Fates[Uncertain] }

// Excused counts the packets that were not compared, or not as a whole.
func (a *Account) Excused() int { return a.Packets() - a.Fates[Agreed] - a.Fates[Disagreed] }

// Wrong tells what is wrong with the account itself: nothing was compared, or too little was; "" where nothing is. A short campaign may
// have one packet more than its part.
func (a *Account) Wrong() string {
	switch packets, excused := a.Packets(), a.Excused(); {
	case a.Compared() == 0 || a.Steps == 0:
		return "nothing was compared"
	case (excused-1)*mostExcused > packets:
		return fmt.Sprintf("%d of %d packets were not compared: more than one in %d", excused, packets, mostExcused)
	}
	return ""
}

// String returns the account in two lines.
func (a *Account) String() string {
	return fmt.Sprintf("%d packets, %d steps compared; %s\n"+
		"they ended: %s; on the way of %d is a rule that the model does not understand; %d rules that packets met when they were sent "+
		"again were not compared", a.Packets(), a.Steps, counts(a.Fates), counts(a.Ends), a.Open, a.Repeated)
}

func counts[K ~string](m map[K]int) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, fmt.Sprintf("%s %d", k, m[k]))
	}
	return strings.Join(parts, ", ")
}
