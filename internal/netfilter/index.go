package netfilter

// index is what makes evaluation fast; made by Index.
type index struct{}
