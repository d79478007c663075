// Package redact owns what makes a capture fit to be given away: addresses and names are replaced all over it, the same ones by the same,
// so that packets walk through it as before (docs/capture.md tells what is replaced and what stays).
//
// It works on the texts of a capture, by syntax's parsers and printers, and must not import kernel, Kubernetes or walk.
package redact
