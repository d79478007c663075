package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestNoTargetIsLeftOut: what a run does not measure is told with the command that does, beside what it judges and on its page.
func TestNoTargetIsLeftOut(t *testing.T) {
	for _, services := range []int{10_000, 100_000} {
		r := &proxyResults{filled: []time.Duration{time.Second}}
		r.add(measurement{proxy: ours, services: services})
		var printed bytes.Buffer
		r.judge(&printed)
		for where, text := range map[string]string{"the verdicts": printed.String(), "the page": r.page()} {
			for command, want := range map[string]bool{"-bench Kernel/iptables-legacy ": true, "-nodes 100 -pods 2000 scale": true,
				"make bench-proxy SERVICES=100000": services < 100_000} {
				if strings.Contains(text, command) != want {
					t.Errorf("%d services: %s have %q: %v", services, where, command, !want)
				}
			}
		}
	}
}
