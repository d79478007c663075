package main

import (
	"slices"
	"testing"
)

func TestChoose(t *testing.T) {
	tests := []struct {
		name     string
		argv     []string
		program  string
		args     []string
		accepted bool
	}{
		{"by first argument", []string{"/usr/bin/packetwalk-controlplane", "etcd", "--name=a"}, "etcd", []string{"etcd", "--name=a"}, true},
		{"by own name", []string{"/usr/bin/kubectl", "get", "pods"}, "kubectl", []string{"/usr/bin/kubectl", "get", "pods"}, true},
		{"own name before argument", []string{"kubectl", "etcd"}, "kubectl", []string{"kubectl", "etcd"}, true},
		{"unknown component", []string{"packetwalk-controlplane", "kubelet"}, "", nil, false},
		{"nothing", []string{"packetwalk-controlplane"}, "", nil, false},
		{"no argument vector", nil, "", nil, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			program, args, ok := choose(test.argv)
			if program != test.program || !slices.Equal(args, test.args) || ok != test.accepted {
				t.Errorf("choose(%q) = %q, %q, %v; want %q, %q, %v", test.argv, program, args, ok, test.program, test.args, test.accepted)
			}
		})
	}
}
