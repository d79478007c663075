package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"packetwalk.dev/internal/pods/images"
)

// archiveOf returns a package's archive.
func archiveOf(t *testing.T, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(h.Name))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			fmt.Fprint(w, h.Name)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadPackage: of a package's files the image has its programs with the links to them, libraries, licences and authorities, in /usr;
// neither what runs by a shell, nor documentation, nor setuid bits.
func TestReadPackage(t *testing.T) {
	regular := func(name string, mode int64) tar.Header {
		return tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: mode}
	}
	link := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeSymlink, Name: "./" + name, Linkname: target, Mode: 0o777}
	}
	var authorities strings.Builder
	got, err := readPackage(archiveOf(t,
		tar.Header{Typeflag: tar.TypeDir, Name: "./usr/share/doc/ip/", Mode: 0o755}, regular("bin/ip", 0o4755), link("sbin/ip", "/bin/ip"),
		regular("usr/sbin/iptables-apply", 0o755), link("usr/sbin/ip6tables-apply", "iptables-apply"), regular("bin/ss", 0o755),
		regular("lib/x86_64-linux-gnu/libc.so.6", 0o755), link("lib/ld-linux-aarch64.so.1", "aarch64-linux-gnu/ld-linux-aarch64.so.1"),
		regular("usr/lib/x86_64-linux-gnu/gconv/BIG5.so", 0o644), regular("usr/lib/x86_64-linux-gnu/xtables/libxt_set.so", 0o644),
		regular("usr/share/doc/ip/copyright", 0o600), regular("usr/share/doc/ip/README.gz", 0o644), link("usr/share/doc/libip", "ip"),
		regular("usr/share/ca-certificates/mozilla/A.crt", 0o644),
	), &authorities)
	if err != nil {
		t.Fatal(err)
	}
	want := []images.File{
		{Path: "/usr/bin/ip", Text: "./bin/ip", Mode: 0o755}, {Path: "/usr/sbin/ip", Link: "/bin/ip", Mode: 0o755},
		{Path: "/usr/lib/x86_64-linux-gnu/libc.so.6", Text: "./lib/x86_64-linux-gnu/libc.so.6", Mode: 0o755},
		{Path: "/usr/lib/ld-linux-aarch64.so.1", Link: "/usr/lib/aarch64-linux-gnu/ld-linux-aarch64.so.1", Mode: 0o755},
		{Path: "/usr/lib/x86_64-linux-gnu/xtables/libxt_set.so", Text: "./usr/lib/x86_64-linux-gnu/xtables/libxt_set.so", Mode: 0o644},
		{Path: "/usr/share/doc/ip/copyright", Text: "./usr/share/doc/ip/copyright", Mode: 0o644},
		{Path: "/usr/share/doc/libip", Link: "ip", Mode: 0o755},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := authorities.String(); got != "./usr/share/ca-certificates/mozilla/A.crt\n" {
		t.Errorf("authorities: %q", got)
	}
	hard := tar.Header{Typeflag: tar.TypeLink, Name: "./bin/ip", Linkname: "./bin/bridge"}
	if _, err := readPackage(archiveOf(t, hard), &authorities); err == nil || !strings.Contains(err.Error(), "/usr/bin/ip is a hard link") {
		t.Error(err)
	}
}
