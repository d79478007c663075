package main

// mostComments limits the function comments of a directory that begin "X is" or "X are". A limit may only fall; the map is to become empty.
var mostComments = map[string]int{
	"internal/cli":          20,
	"internal/kernel/probe": 1,
	"internal/pods/images":  16,
	"test/agree":            3,
	"test/claims":           11,
	"test/faults":           10,
	"test/foreign":          2,
	"test/pages":            2,
	"test/places":           3,
	"test/plugin":           7,
	"test/policies":         6,
	"test/realnode":         7,
	"test/tours":            1,
	"test/vm":               3,
	"test/walks":            3,
	"test/world":            7,
}
