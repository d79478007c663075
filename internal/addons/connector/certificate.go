package connector

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// SignerName is the signer of a virtual node's serving certificate. Upstream's for kubelets takes requests of nodes' own users only, and
// the connector is a service account.
const SignerName = "packetwalk.dev/virtual-node-serving"

// requestCertificate asks for a serving certificate for the connector's present address, as a kubelet does at its start, and waits for it.
func requestCertificate(ctx context.Context, client kubernetes.Interface, node string, address netip.Addr) (tls.Certificate, error) {
	fail := func(err error) (tls.Certificate, error) {
		return tls.Certificate{}, fmt.Errorf("serving certificate of %s: %w", node, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		DNSNames: []string{node}, IPAddresses: []net.IP{address.AsSlice()},
	}, key)
	if err != nil {
		return fail(err)
	}
	api := client.CertificatesV1().CertificateSigningRequests()
	csr, err := api.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-" + node + "-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: SignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fail(err)
	}
	for len(csr.Status.Certificate) == 0 {
		for _, c := range csr.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
				return fail(errors.New(c.Message))
			}
		}
		select {
		case <-ctx.Done():
			return fail(ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
		if csr, err = api.Get(ctx, csr.Name, metav1.GetOptions{}); err != nil {
			return fail(err)
		}
	}
	return tls.Certificate{Certificate: certificates(csr.Status.Certificate), PrivateKey: key}, nil
}

// certificates returns the DER blocks of a PEM chain.
func certificates(chain []byte) [][]byte {
	var all [][]byte
	for {
		var block *pem.Block
		if block, chain = pem.Decode(chain); block == nil {
			return all
		}
		all = append(all, block.Bytes)
	}
}
