package ingress

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// certificates gives the hosts of an Ingress's rules their certificates: of the TLS entry that names the host, else of one whose
// certificate is good for it, as ingress-nginx does.
func (b *builder) certificates(i *networkingv1.Ingress) {
	used := map[string]bool{}
	entries := make([]*Certificate, len(i.Spec.TLS))
	for n, entry := range i.Spec.TLS {
		if entry.SecretName != "" { // without one the server's own certificate is shown
			entries[n] = b.certificate(i, tlsField(n), entry.SecretName)
		}
	}
	for _, r := range i.Spec.Rules {
		name := strings.ToLower(r.Host)
		n := tlsEntry(i, name, entries)
		if n < 0 || used[name] {
			continue
		}
		used[name] = true
		b.certify(i, tlsField(n), name, entries[n])
	}
	for n, entry := range i.Spec.TLS {
		for _, host := range entry.Hosts {
			if !slices.ContainsFunc(i.Spec.Rules, func(r networkingv1.IngressRule) bool { return covers(host, r.Host) }) {
				b.problem(i, tlsField(n), "no rule is for host %s", host)
			}
		}
	}
}

func tlsField(n int) string { return fmt.Sprintf("spec.tls[%d]", n) }

// covers reports whether a TLS entry's host, perhaps a wildcard, is a rule's.
func covers(entry, rule string) bool {
	_, parent, _ := strings.Cut(rule, ".")
	return strings.EqualFold(entry, rule) || strings.EqualFold(entry, "*."+parent)
}

// tlsEntry returns the index of the entry whose certificate a host shows, -1 for none.
func tlsEntry(i *networkingv1.Ingress, host string, certificates []*Certificate) int {
	for n, entry := range i.Spec.TLS {
		if certificates[n] != nil && slices.ContainsFunc(entry.Hosts, func(h string) bool { return strings.EqualFold(h, host) }) {
			return n
		}
	}
	for n, entry := range i.Spec.TLS {
		c := certificates[n]
		if c != nil && (host == "" && len(entry.Hosts) == 0 || host != "" && c.Pair.Leaf.VerifyHostname(sample(host)) == nil) {
			return n
		}
	}
	return -1
}

// sample returns a name that a host's name stands for.
func sample(host string) string { return strings.Replace(host, "*", "any", 1) }

func (b *builder) certify(i *networkingv1.Ingress, field, name string, c *Certificate) {
	h := b.host(name)
	if h.Certificate != nil {
		if h.Certificate.Secret != c.Secret {
			b.problem(i, field, "%s shows the certificate that %s names, which is older", hostWord(name), b.certified[name])
		}
		return
	}
	if name != "" && c.Pair.Leaf.VerifyHostname(sample(name)) != nil {
		b.problem(i, field, "the certificate in Secret %s is not for host %s; clients will refuse it", c.Secret, name)
	}
	h.Certificate, b.certified[name] = c, Origin{nameOf(i), field}
}

// certificate reads the Secret that an Ingress names; nil, and a problem, where it cannot.
func (b *builder) certificate(i *networkingv1.Ingress, field, secret string) *Certificate {
	name := types.NamespacedName{Namespace: i.Namespace, Name: secret}
	s := b.secrets[name]
	if s == nil {
		b.problem(i, field, "there is no Secret %s of type %s; the controller's own certificate is shown", name, corev1.SecretTypeTLS)
		return nil
	}
	pair, err := tls.X509KeyPair(s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey])
	if err == nil {
		pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	}
	if err != nil {
		b.problem(i, field, "Secret %s: %v; the controller's own certificate is shown", name, err)
		return nil
	}
	return &Certificate{name, pair}
}

// Certificate finds what a client sees that asks for a server name (SNI); nil: the server's own certificate.
func (t *Table) Certificate(serverName string) *Certificate {
	h, _ := t.find(hostOf(serverName))
	if h == nil {
		return nil
	}
	return h.Certificate
}
