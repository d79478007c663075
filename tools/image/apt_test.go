package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestParseURIs reads what apt-get prints, with an epoch and escapes. What is not the mirror's or has no SHA-256 digest is refused.
func TestParseURIs(t *testing.T) {
	const printed = "'http://deb.debian.org/debian/pool/libbpf1_1.1.2-0%2bdeb12u1_arm64.deb' libbpf1_1%3a1.1.2-0+deb12u1_arm64.deb 37 SHA256:" +
		digest + "\n'http://deb.debian.org/debian/pool/netbase_6.4_all.deb' netbase_6.4_all.deb 12800 SHA256:" + digest + "\n"
	got, err := parseURIs("arm64", "http://deb.debian.org", printed)
	if err != nil {
		t.Fatal(err)
	}
	want := []lockedPackage{
		{image: "arm64", name: "libbpf1", version: "1:1.1.2-0+deb12u1", arch: "arm64", size: 37, path: "debian/pool/libbpf1_1.1.2-0+deb12u1_arm64.deb",
			sha256: digest},
		{image: "arm64", name: "netbase", version: "6.4", arch: "all", size: 12800, path: "debian/pool/netbase_6.4_all.deb", sha256: digest},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(lockedPackage{})); diff != "" {
		t.Error(diff)
	}
	for _, line := range []string{
		"'http://other.example/debian/a_1_all.deb' a_1_all.deb 1 SHA256:" + digest, "'http://deb.debian.org/a.deb' a.deb 1 SHA256:" + digest,
		"'http://deb.debian.org/debian/a_1_all.deb' a_1_all.deb 1 MD5Sum:" + digest, "'http://deb.debian.org/debian/a_1_all.deb' a_1_all.deb 1",
		"'http://deb.debian.org/debian/a_1_all.deb' a_1_all.deb 1 SHA256:00",
	} {
		if _, err := parseURIs("arm64", "http://deb.debian.org", line+"\n"); err == nil {
			t.Errorf("%q is read", line)
		}
	}
}
