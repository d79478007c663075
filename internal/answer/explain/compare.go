package explain

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"

	"packetwalk.dev/internal/base/termsafe"
	"packetwalk.dev/internal/model/walk"
)

// Compare writes how a walk differs from an earlier one, which is called by its file's name: in what the destination sees, in the outcomes,
// and in the first step.
func Compare(w io.Writer, name string, before *Earlier, r *walk.Result, o Options) error {
	const most = 1000
	if r != nil && len(r.Outcomes) > most {
		return fmt.Errorf("compare walks: this one has %d outcomes, more than %d; add --choose to both", len(r.Outcomes), most)
	}
	var document bytes.Buffer
	if err := JSON(termsafe.Writer(&document), r, o); err != nil {
		return err
	}
	now, err := parseEarlier(document.Bytes())
	if err != nil {
		return fmt.Errorf("read this walk's JSON: %w", err)
	}
	p := &page{Writer: bufio.NewWriter(termsafe.Writer(w)), o: &o}
	p.wrapped("", bold, now.asked())
	p.wrapped("--- ", red, name)
	p.wrapped("+++ ", green, "now")
	if before.asked() != now.asked() {
		p.differ("the packet", []string{before.asked()}, []string{now.asked()}, true)
	}
	p.differ("what the destination sees", before.conclusions(), now.conclusions(), true)
	p.differ("outcomes", before.rows(), now.rows(), true)
	p.firstStep(before, now)
	if was, is := before.assumptions(), now.assumptions(); !slices.Equal(was, is) {
		p.differ("assumed, where it differs", was, is, false)
	}
	fmt.Fprintln(p)
	for _, n := range o.Notes {
		p.wrapped("", plain, n)
	}
	if before.More || now.More {
		p.wrapped("", plain, "there are more outcomes than those that were walked: what is missing here may be among them")
	}
	return p.Flush()
}

// differ writes what only one of two walks has behind a sign. What both have stands without one, or is left out. Entries may have several
// lines.
func (p *page) differ(title string, before, now []string, withCommon bool) {
	fmt.Fprintln(p)
	if slices.Equal(before, now) {
		title += ", as before"
	}
	p.wrapped("", bold, title+":")
	rest := slices.Clone(now)
	rows := 0
	row := func(sign, look, text string) {
		if rows++; rows > mostRows {
			return
		}
		for line := range strings.SplitSeq(text, "\n") {
			p.wrapped(sign+" ", look, line)
		}
	}
	for _, line := range before {
		if i := slices.Index(rest, line); i >= 0 {
			if rest = slices.Delete(rest, i, i+1); withCommon {
				row(" ", plain, line)
			}
			continue
		}
		row("-", red, line)
	}
	for _, line := range rest {
		row("+", green, line)
	}
	if rows > mostRows {
		p.wrapped("  ", plain, fmt.Sprintf("and %d more", rows-mostRows))
	}
}

// firstStep writes the first step that an outcome has not in common with the one before that is most like it.
func (p *page) firstStep(before, now *Earlier) {
	was, is, at := closest(before, now)
	if was == nil {
		return
	}
	fmt.Fprintln(p)
	p.wrapped("", bold, fmt.Sprintf("the first step that differs, of outcome %d before and %d now, after %d steps that are the same:", was.Number, is.Number, at))
	if steps := was.way(); at < len(steps) {
		p.wrapped("- ", red, steps[at].text)
	}
	if steps := is.way(); at < len(steps) {
		p.wrapped("+ ", green, steps[at].text)
	}
}

// closest returns two outcomes that differ, of those that the other walk has not the first that goes the same way longest, and where they
// part. It returns nil where all outcomes are in both walks, or one walk has none.
func closest(before, now *Earlier) (was, is *earlierOutcome, at int) {
	const most = 200 // outcomes of either
	type candidate struct {
		outcome *earlierOutcome
		way     []step
	}
	candidates := func(e *Earlier) (all []candidate) {
		for i := range e.Outcomes[:min(len(e.Outcomes), most)] {
			all = append(all, candidate{&e.Outcomes[i], e.Outcomes[i].way()})
		}
		return all
	}
	old, present := candidates(before), candidates(now)
	same := func(a, b candidate) bool { return common(a.way, b.way) == max(len(a.way), len(b.way)) }
	only := func(all, others []candidate) []candidate {
		return slices.DeleteFunc(slices.Clone(all), func(c candidate) bool {
			return slices.ContainsFunc(others, func(o candidate) bool { return same(c, o) })
		})
	}
	gone, come := only(old, present), only(present, old)
	if len(gone) > 0 && len(come) > 0 {
		old, present = gone, come
	} else if len(come) > 0 {
		present = come
	} else {
		old = gone
	}
	at = -1
	for _, a := range old {
		for _, b := range present {
			if n := common(a.way, b.way); n > at {
				was, is, at = a.outcome, b.outcome, n
			}
		}
	}
	return was, is, at
}

// common returns how many steps two ways have in common at the beginning.
func common(a, b []step) int {
	n := 0
	for n < min(len(a), len(b)) && a[n].key == b[n].key {
		n++
	}
	return n
}

func (e *Earlier) asked() string {
	if e.Packet.Protocol == "" {
		return "no packet, because its name is not resolved"
	}
	return fmt.Sprintf("%s %s → %s", e.Packet.Protocol, e.Packet.source(), e.Packet.destination())
}

// conclusions returns what the destination sees, each with its conditions below it and, where there are several, with its share.
func (e *Earlier) conclusions() []string {
	if len(e.Conclusions) == 0 {
		return []string{termsafe.Text(e.Headline)}
	}
	var all []string
	for _, c := range e.Conclusions {
		text := termsafe.Text(c.Text)
		if len(e.Conclusions) > 1 {
			text = percent(e.share(c.Outcomes)) + ": " + text
		}
		for _, condition := range c.Conditions {
			text += "\n  - " + termsafe.Text(condition)
		}
		all = append(all, text)
	}
	return all
}

// share returns how likely one of some outcomes is; nil where that is unknown.
func (e *Earlier) share(numbers []int) *big.Rat {
	sum := new(big.Rat)
	for i := range e.Outcomes {
		if o := &e.Outcomes[i]; slices.Contains(numbers, o.Number) {
			p := o.probability()
			if p == nil {
				return nil
			}
			sum.Add(sum, p)
		}
	}
	return sum
}

func (o *earlierOutcome) probability() *big.Rat {
	if o.ProbabilityDecimal == nil {
		return nil
	}
	return new(big.Rat).SetFloat64(*o.ProbabilityDecimal) // JSON has no infinite numbers
}

func (e *Earlier) rows() []string {
	rows := []string{}
	for i := range e.Outcomes {
		o := &e.Outcomes[i]
		rows = append(rows, percent(o.probability())+"  "+termsafe.Text(o.Short))
	}
	return rows
}

func (e *Earlier) assumptions() []string {
	var all []string
	for _, a := range e.Assumed {
		all = append(all, termsafe.Text(hostName(a.Node)+": "+a.What))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
