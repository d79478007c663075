package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// defaultLab has a capture of the README's first lab, before its last command.
const defaultLab = "testdata/default.pwcap.tar.gz"

// TestREADME: the picture of the README is what this program draws. -update would hide a fault of the walk: draw it by hand and look.
func TestREADME(t *testing.T) {
	want, err := os.ReadFile("../../docs/lab.svg")
	if err != nil {
		t.Fatal(err)
	}
	got, err := picture(defaultLab, "internet/client", "svc/whereami")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("docs/lab.svg is another picture (-there +drawn):\n%s\ndraw it with: "+
			"go run ./tools/picture tools/picture/testdata/default.pwcap.tar.gz internet/client svc/whereami > docs/lab.svg", d)
	}
}

func TestRefuses(t *testing.T) {
	if _, err := picture(defaultLab, "vm/vm", "svc/whereami"); err == nil || !strings.Contains(err.Error(), "internet host") {
		t.Errorf("a packet from a VM: %v", err)
	}
	if _, err := picture("none.tar.gz", "internet", "svc/whereami"); err == nil {
		t.Error("a capture that is not there is drawn")
	}
}
