package fib

// index is what makes look-ups fast; made by Index.
type index struct{}
