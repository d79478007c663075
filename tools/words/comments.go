package main

// mostComments limits the function comments of a directory that begin "X is" or "X are". A limit may only fall; the map is to become empty.
var mostComments = map[string]int{
	"internal/cli":          1,
	"internal/kernel/probe": 1,
	"internal/pods/images":  16,
	"test/claims":           11,
	"test/faults":           10,
	"test/places":           3,
	"test/realnode":         7,
}
