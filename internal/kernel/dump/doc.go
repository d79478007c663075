// Package dump owns the reading of a namespace's state as raw texts, by the table capture.Dumps. It only reads: it has no kernel module
// loaded and makes no table (modules.go says how). What the texts say is capture's to know.
package dump
