package iptables

import "testing"

// TestChainHash: the vectors of chains as upstream names them (k8s.io/kubernetes pkg/proxy/iptables, and the articles' listings).
func TestChainHash(t *testing.T) {
	for in, want := range map[string]string{
		"default/whereami:tcp": "7G2JV7LNOR6DDNIY", "default/whereami:tcp10.13.76.26:80": "6HBOEI5FVFTJNRJ3",
		"default/kubernetes:httpstcp": "NPX46M4PTMTKRN6Y", "kube-system/kube-dns:dnsudp": "TCOU7JCQXEZGVUNU",
	} {
		if got := hash(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}
