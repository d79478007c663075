package verify

import (
	"math"
	"slices"
)

// cell is one outcome of an experiment that is made many times: how often it is expected and how often it was observed.
type cell struct{ expected, observed float64 }

// leastExpected is how many a cell needs for the chi-square distribution to hold: smaller ones are put together.
const leastExpected = 5

// chiSquare returns the probability that observations differ from the expectations at least as much as these do, if the expectations are
// right: Pearson's test.
func chiSquare(cells []cell) float64 {
	slices.SortFunc(cells, func(a, b cell) int { return int(math.Copysign(1, a.expected-b.expected)) })
	var merged []cell
	var small cell
	for _, c := range cells {
		if c.expected == 0 && c.observed > 0 {
			return 0 // what cannot happen has happened
		}
		if small.expected < leastExpected {
			small.expected, small.observed = small.expected+c.expected, small.observed+c.observed
			continue
		}
		merged = append(merged, c)
	}
	if small.expected < leastExpected && len(merged) > 0 {
		merged[0].expected, merged[0].observed = merged[0].expected+small.expected, merged[0].observed+small.observed
	} else {
		merged = append(merged, small)
	}
	if len(merged) < 2 {
		return 1
	}
	x := 0.0
	for _, c := range merged {
		d := c.observed - c.expected
		x += d * d / c.expected
	}
	return upperGamma(float64(len(merged)-1)/2, x/2)
}

// upperGamma returns the regularized upper incomplete gamma function Q(a, x): by its series for small x, else by Lentz's continued fraction
// (Abramowitz and Stegun, 6.5.29 and 6.5.31).
func upperGamma(a, x float64) float64 {
	const enough, most = 1e-14, 10000
	log, _ := math.Lgamma(a)
	front := math.Exp(a*math.Log(x) - x - log)
	switch {
	case x <= 0:
		return 1
	case x < a+1:
		term, sum := 1/a, 1/a
		for n := 1.0; n < most && term > sum*enough; n++ {
			term *= x / (a + n)
			sum += term
		}
		return 1 - front*sum
	}
	b := x + 1 - a
	c, d := math.Inf(1), 1/b
	h := d
	for n := 1.0; n < most; n++ {
		k := -n * (n - a)
		b += 2
		d = 1 / (b + k*d)
		c = b + k/c
		h *= c * d
		if math.Abs(c*d-1) < enough {
			break
		}
	}
	return front * h
}
