package main

// mostComments limits the function comments of a directory that begin "X is" or "X are". A limit may only fall; the map is to become empty.
var mostComments = map[string]int{}
