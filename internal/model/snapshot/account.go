package snapshot

// Fate tells how a line of a text was taken.
type Fate uint8

// The fates. Each line has exactly one.
const (
	LineRead     Fate = iota // by a reader, as something
	LineNoEffect             // for a stated reason
	LineNotRead
)

// TextLine is the fate of one line.
type TextLine struct {
	Fate Fate
	As   string // what it was read as, why it has no effect, or why it was not read
	IPv6 bool   // of a line that was not read: it names addresses, and all of them are of IPv6
	IPv4 bool   // the same for IPv4
}

// Account has the fate of each line of the text that a host was read from. It is nil for other hosts.
type Account []TextLine

// Unread returns the numbers, from 1, of the lines that were not read.
func (a Account) Unread() []int {
	var numbers []int
	for i := range a {
		if a[i].Fate == LineNotRead {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

// MayChange returns the numbers of the lines that were not read and may change the fate of a packet of one family. Only lines about the
// other family cannot. A conclusion is definite if there are none.
func (a Account) MayChange(ipv6 bool) []int {
	var numbers []int
	for i := range a {
		if a[i].Fate == LineNotRead && (!a[i].IPv6 || ipv6) && (!a[i].IPv4 || !ipv6) {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}
