package main

// phrases are not to be used. A space stands for any white space.
var phrases = []struct{ phrase, replacement string }{
	{"an address that nobody", "unknown address"},
	{"anybody", "any user, any process"},
	{"are taken to", "assuming …"},
	{"begins no", "does not start a"},
	{"everybody", "every user, every process"},
	{"for nobody", "no …"},
	{"half a sync", "a partial sync"},
	{"is away", "is missing"},
	{"is no archive", "not an archive"},
	{"is no port", "invalid port"},
	{"is taken to", "assuming …"},
	{"nobody can", "unknown"},
	{"nobody else", "no other process"},
	{"nobody has", "unknown"},
	{"nobody here", "unknown"},
	{"nobody knows", "unknown"},
	{"nobody tells", "unknown"},
	{"nobody's", "unknown, or unallocated"},
	{"octets", "bytes"},
	{"somebody", "another user, another process"},
	{"tells whether", "reports whether"},
	{"that nobody", "unknown, or not …"},
	{"that which", "what"},
	{"to be named", "specify …"},
	{"what nobody", "unknown"},
	{"where nobody", "where no …"},
	{"which nobody", "unknown, or not …"},
	{"whom", "a noun"},
}

// nouns end like participles.
var nouns = []string{"binding", "finding", "greeting", "listing", "mapping", "marking", "meaning", "peering", "probing", "reading", "ring", "setting", "sighting", "string",
	"thing", "timing", "tracking", "logging", "need", "feed", "seed"}

// otherWords are participles, adjectives and verbs that the ending does not show.
var otherWords = []string{"alive", "begun", "built", "eagerly", "given", "gone", "held", "hidden", "kept", "known", "late", "lost", "made",
	"met", "none", "patient", "plain", "quiet", "said", "seen", "sent", "shown", "silent", "single", "still", "taken", "told", "unknown",
	"unseen", "unshown", "usual", "written"}

// exempt are paths that are not checked. This list is to become empty.
var exempt = []string{
	"docs/glossary.md",
	"tools/words/",
}
