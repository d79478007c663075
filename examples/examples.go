// Package examples holds the examples' files within the program, so that its tours need no repository. It must not import any internal
// package.
package examples

import "embed"

// Files are the examples: a folder each, with README.md, cluster files and manifests.
//
//go:embed */*
var Files embed.FS
