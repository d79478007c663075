package nftables

import (
	"runtime"
	"strings"
	"sync"
)

// parallel does something for parts of 0 to n-1, several at once, and gives the error of the first part that has one.
func parallel(n int, do func(from, to int) error) error {
	parts := min(n, 4*runtime.GOMAXPROCS(0)) // more than processors: they take unequal times
	errs := make([]error, parts)
	next := make(chan int, parts)
	for i := range parts {
		next <- i
	}
	close(next)
	var wait sync.WaitGroup
	for range min(parts, runtime.GOMAXPROCS(0)) {
		wait.Go(func() {
			for i := range next {
				errs[i] = do(n*i/parts, n*(i+1)/parts)
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// extent is a part of a text.
type extent struct{ from, to int }

// extents finds, by brackets and strings alone, where the items of the array that begins at a place are, and where it ends; false where it
// does not.
func extents(text string, at int) (items []extent, end int, ok bool) {
	depth, from := 0, at+1
	for ; at < len(text); at++ {
		switch text[at] {
		case '"':
			if at = stringEnd(text, at); at < 0 {
				return nil, 0, false
			}
		case '[', '{':
			depth++
		case ',':
			if depth == 1 {
				items, from = append(items, extent{from, at}), at+1
			}
		case ']', '}':
			if depth--; depth == 0 {
				if len(items) > 0 || strings.TrimSpace(text[from:at]) != "" {
					items = append(items, extent{from, at})
				}
				return items, at + 1, text[at] == ']'
			}
		}
	}
	return nil, 0, false
}

// stringEnd returns where the string that begins at a place has its second quotation mark; negative where it has none.
func stringEnd(text string, at int) int {
	for begin := at; ; {
		next := strings.IndexByte(text[at+1:], '"')
		if next < 0 {
			return -1
		}
		at += 1 + next
		escapes := 0
		for text[at-1-escapes] == '\\' {
			escapes++ // ends at the first quotation mark at the latest
		}
		if escapes%2 == 0 || at-1-escapes < begin {
			return at
		}
	}
}
