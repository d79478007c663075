package signer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"packetwalk.dev/internal/addons/connector"
	"packetwalk.dev/internal/lab/controlplane"
	"packetwalk.dev/internal/lab/plan"
)

// A signingRequest is the connector's, before a test changes it.
type signingRequest struct {
	content x509.CertificateRequest
	key     crypto.Signer
	spec    certificatesv1.CertificateSigningRequestSpec
	after   func(request []byte) []byte // of the PEM text
}

func connectorRequest(t *testing.T) *signingRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &signingRequest{
		content: x509.CertificateRequest{
			Subject:  pkix.Name{CommonName: "system:node:" + plan.VirtualNode, Organization: []string{"system:nodes"}},
			DNSNames: []string{plan.VirtualNode}, IPAddresses: []net.IP{net.IPv4(10, 13, 76, 9).To4()},
		},
		key: key,
		spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: connector.SignerName, Username: plan.ConnectorAccount,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			Extra:  map[string]certificatesv1.ExtraValue{extraPodName: {"aci-connector"}, extraPodUID: {"uid-1"}},
		},
		after: func(b []byte) []byte { return b },
	}
}

// TestSigner: a request is signed for the address of the pod that asks, and for nothing else.
func TestSigner(t *testing.T) {
	extension := func(id ...int) pkix.Extension {
		return pkix.Extension{Id: id, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}
	}
	for name, tt := range map[string]struct {
		change func(*signingRequest)
		want   string // part of the denial, "" when it is signed
	}{
		"the connector's":    {func(*signingRequest) {}, ""},
		"its second address": {func(r *signingRequest) { r.content.IPAddresses = []net.IP{net.ParseIP("fd00::9")} }, ""},
		"another's address":  {func(r *signingRequest) { r.content.IPAddresses = []net.IP{net.IPv4(10, 13, 76, 4).To4()} }, "10.13.76.4"},
		"two addresses": {func(r *signingRequest) {
			r.content.IPAddresses = append(r.content.IPAddresses, net.IPv4(10, 13, 76, 4).To4())
		}, "10.13.76.4"},
		"no address":      {func(r *signingRequest) { r.content.IPAddresses = nil }, "addresses"},
		"another user":    {func(r *signingRequest) { r.spec.Username = "system:serviceaccount:default:default" }, "not the connector"},
		"no pod's token":  {func(r *signingRequest) { r.spec.Extra = nil }, "token of a pod"},
		"an earlier pod":  {func(r *signingRequest) { r.spec.Extra[extraPodUID] = certificatesv1.ExtraValue{"uid-0"} }, "is gone"},
		"a pod not there": {func(r *signingRequest) { r.spec.Extra[extraPodName] = certificatesv1.ExtraValue{"x"} }, "is gone"},
		"another signer":  {func(r *signingRequest) { r.spec.SignerName = "kubernetes.io/kubelet-serving" }, "signer"},
		"another node":    {func(r *signingRequest) { r.content.Subject.CommonName = "system:node:aks-0" }, "system:node:aks-0"},
		"another group":   {func(r *signingRequest) { r.content.Subject.Organization = []string{"system:masters"} }, "system:masters"},
		"a second group":  {func(r *signingRequest) { r.content.Subject.Organization = []string{"system:nodes", "x"} }, "system:nodes"},
		"another name":    {func(r *signingRequest) { r.content.DNSNames = []string{"kubernetes"} }, "kubernetes"},
		"one name more":   {func(r *signingRequest) { r.content.DNSNames = append(r.content.DNSNames, "kubernetes") }, "kubernetes"},
		"a mail address":  {func(r *signingRequest) { r.content.EmailAddresses = []string{"a@example.com"} }, "neither DNS names nor addresses"},
		"a URI": {func(r *signingRequest) { r.content.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} },
			"neither DNS names nor addresses"},
		"an authority":     {func(r *signingRequest) { r.content.ExtraExtensions = []pkix.Extension{extension(2, 5, 29, 19)} }, "extensions"},
		"more key usage":   {func(r *signingRequest) { r.content.ExtraExtensions = []pkix.Extension{extension(2, 5, 29, 15)} }, "extensions"},
		"client auth too":  {func(r *signingRequest) { r.spec.Usages = append(r.spec.Usages, certificatesv1.UsageClientAuth) }, "usages"},
		"client auth":      {func(r *signingRequest) { r.spec.Usages[1] = certificatesv1.UsageClientAuth }, "usages"},
		"no usages":        {func(r *signingRequest) { r.spec.Usages = nil }, "usages"},
		"signing":          {func(r *signingRequest) { r.spec.Usages = append(r.spec.Usages, certificatesv1.UsageCertSign) }, "usages"},
		"another key type": {func(r *signingRequest) { r.key = weakKey(t) }, "P-256"},
		"oversize": {func(r *signingRequest) {
			r.after = func(b []byte) []byte { return append(b, strings.Repeat("\n", maxRequest)...) }
		}, "bytes; the limit"},
		"two requests": {func(r *signingRequest) { r.after = func(b []byte) []byte { return append(b, b...) } }, "one PEM block"},
		"no PEM":       {func(r *signingRequest) { r.after = func([]byte) []byte { return []byte("x") } }, "one PEM block"},
		"no request":   {func(r *signingRequest) { r.after = func([]byte) []byte { return pemText([]byte("x")) } }, "cannot be read"},
		"another's signature": {func(r *signingRequest) {
			r.after = func(b []byte) []byte {
				block, _ := pem.Decode(b)
				block.Bytes[len(block.Bytes)-1] ^= 1
				return pemText(block.Bytes)
			}
		}, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			r := connectorRequest(t)
			tt.change(r)
			der, err := x509.CreateCertificateRequest(rand.Reader, &r.content, r.key)
			if err != nil {
				t.Fatal(err)
			}
			r.spec.Request = r.after(pemText(der))
			expectVerdict(t, r, tt.want)
		})
	}
}

// expectVerdict has a request judged: denied with a reason that has a text in it, or signed.
func expectVerdict(t *testing.T, r *signingRequest, denied string) {
	t.Helper()
	ca, err := controlplane.NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr"}, Spec: r.spec}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "aci-connector", UID: "uid-1"},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.13.76.9"}, {IP: "fd00::9"}}},
	}
	other := pod.DeepCopy()
	other.Name, other.UID, other.Status.PodIPs = "other", "uid-2", []corev1.PodIP{{IP: "10.13.76.4"}}
	client := fake.NewClientset(csr, pod, other)
	signErr := (&Signer{Name: connector.SignerName, Client: client, CA: ca, Log: slog.New(slog.DiscardHandler)}).sign(t.Context(),
		csr.DeepCopy())
	got, err := client.CertificatesV1().CertificateSigningRequests().Get(context.Background(), "csr", metav1.GetOptions{})
	if err != nil || len(got.Status.Conditions) != 1 {
		t.Fatalf("%v; conditions %v", err, got.Status.Conditions)
	}
	c := got.Status.Conditions[0]
	if denied != "" {
		if c.Type != certificatesv1.CertificateDenied || !strings.Contains(c.Message, denied) || len(got.Status.Certificate) > 0 ||
			signErr == nil {
			t.Errorf("%s %q, signed: %v (%v); want a denial with %q", c.Type, c.Message, len(got.Status.Certificate) > 0, signErr, denied)
		}
		return
	}
	if signErr != nil || c.Type != certificatesv1.CertificateApproved {
		t.Fatalf("%s %q (%v)", c.Type, c.Message, signErr)
	}
	block, _ := pem.Decode(got.Status.Certificate)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if certificate.IsCA || len(certificate.ExtKeyUsage) != 1 || certificate.ExtKeyUsage[0] != x509.ExtKeyUsageServerAuth ||
		len(certificate.IPAddresses) != 1 || !certificate.IPAddresses[0].Equal(r.content.IPAddresses[0]) {
		t.Errorf("signed: CA %v, usages %v, addresses %v", certificate.IsCA, certificate.ExtKeyUsage, certificate.IPAddresses)
	}
}

func pemText(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func weakKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestSignerTriesAgain: a request that could not be answered is a problem until it is.
func TestSignerTriesAgain(t *testing.T) {
	r := connectorRequest(t)
	r.spec.Usages = nil // a denial has to be written down, too
	synctest.Test(t, func(t *testing.T) {
		csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "csr"}, Spec: r.spec}
		client := fake.NewClientset(csr)
		failing := true
		client.PrependReactor("update", "certificatesigningrequests", func(clienttesting.Action) (bool, runtime.Object, error) {
			return failing, nil, errors.New("etcd is full")
		})
		var fault atomic.Pointer[string]
		hear := func(what string, err error) error {
			said := fmt.Sprint(what, ": ", err)
			if fault.Store(&said); err == nil {
				fault.Store(nil)
			}
			return err
		}
		go (&Signer{Name: connector.SignerName, Client: client, Log: slog.New(slog.DiscardHandler), Fault: hear}).try(t.Context(), csr)
		time.Sleep(3*signPause + time.Millisecond)
		if got := fault.Load(); got == nil || !strings.Contains(*got, "certificate signing request csr") ||
			!strings.Contains(*got, "etcd is full") {
			t.Errorf("fault %v", got)
		}
		failing = false
		time.Sleep(signPause)
		if got := fault.Load(); got != nil {
			t.Errorf("fault %s after it was answered", *got)
		}
		if got, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "csr", metav1.GetOptions{}); err != nil ||
			len(got.Status.Conditions) != 1 {
			t.Errorf("%v, %v", got, err)
		}
	})
}

// TestSignerOtherNames: a name of a kind that Go's parser passes over is not passed over here.
func TestSignerOtherNames(t *testing.T) {
	r := connectorRequest(t)
	names, err := asn1.Marshal([]asn1.RawValue{
		{Class: asn1.ClassContextSpecific, Tag: 2, Bytes: []byte(plan.VirtualNode)},
		{Class: asn1.ClassContextSpecific, Tag: 7, Bytes: []byte{10, 13, 76, 9}},
		{Class: asn1.ClassContextSpecific, Tag: 8, Bytes: []byte{42, 3, 4}}, // registeredID
	})
	if err != nil {
		t.Fatal(err)
	}
	r.content.DNSNames, r.content.IPAddresses = nil, nil
	r.content.ExtraExtensions = []pkix.Extension{{Id: subjectAltName, Value: names}}
	der, err := x509.CreateCertificateRequest(rand.Reader, &r.content, r.key)
	if err != nil {
		t.Fatal(err)
	}
	r.spec.Request = pemText(der)
	expectVerdict(t, r, "neither DNS names nor addresses")
}
