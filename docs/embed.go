// Package docs holds the pages within the program that 'packetwalk mcp' serves. It must not import any internal package.
package docs

import "embed"

// Pages holds those pages.
//
//go:embed agents.md drops.md glossary.md questions.md walk.md walk-json.md walk-words.md
var Pages embed.FS
