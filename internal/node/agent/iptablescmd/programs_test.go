package iptablescmd

import (
	"context"
	"strings"
	"testing"

	"packetwalk.dev/internal/node/service"
)

func TestProgramsQuoteTheLineThatFailed(t *testing.T) {
	p := New(service.IPv4, VariantInstalled)
	p.restore = "false"
	if err := p.Restore(context.Background(), nil); err == nil {
		t.Error("no error")
	}
	p.restore = "no-such-program"
	if err := p.Restore(context.Background(), nil); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("got %v", err)
	}
	input := []byte("*nat\n-A X -j Y\nCOMMIT\n")
	for message, want := range map[string]string{
		"iptables-restore v1.8.9 (nf_tables): \nline 2: RULE_APPEND failed": " (line 2: -A X -j Y)",
		"iptables-restore: line 2 failed":                                   " (line 2: -A X -j Y)",
		"Error occurred at line: 2":                                         " (line 2: -A X -j Y)",
		"line 9: what":                                                      "",
		"nothing":                                                           "",
	} {
		if got := failedLine(message, input); got != want {
			t.Errorf("%q: %q, want %q", message, got, want)
		}
	}
}
