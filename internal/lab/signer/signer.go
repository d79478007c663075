// Package signer owns the answers to the certificate signing requests of the virtual node's connector: which are signed, and why the others
// are not.
package signer

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"packetwalk.dev/internal/base/pause"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"packetwalk.dev/internal/lab/plan"
)

// What the API server notes about a token that is bound to a pod (k8s.io/apiserver/pkg/authentication/serviceaccount, PodNameKey and
// PodUIDKey).
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
)

// maxRequest is how long a signing request may be, in bytes of PEM; the connector's has about 500.
const maxRequest = 4 << 10

var subjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17} // RFC 5280, 4.2.1.6

// addressPatience is how long a pod that asks may be without an address in its status.
const addressPatience = 10 * time.Second

// A Signer signs the serving certificates that the virtual node's connector asks for: its pod's address is known only when it runs.
type Signer struct {
	Name   string // of the signer, which requests name
	Client kubernetes.Interface
	CA     Authority
	Log    *slog.Logger
	Fault  func(what string, err error) error // hears how each try went, nil when it went well, and returns err
}

// Authority makes certificates, as PEM text, for requests whose content it does not judge.
type Authority interface {
	SignServing(request *x509.CertificateRequest, now time.Time) ([]byte, error)
}

// Run judges every request that is made, until ctx ends.
func (s *Signer) Run(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(s.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.signerName", s.Name).String()
	}))
	_, err := factory.Certificates().V1().CertificateSigningRequests().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			csr := o.(*certificatesv1.CertificateSigningRequest)
			if len(csr.Status.Certificate) > 0 || judged(csr, certificatesv1.CertificateDenied) {
				return
			}
			go s.try(ctx, csr)
		},
	})
	if err != nil {
		return err
	}
	factory.Start(ctx.Done())
	return nil
}

// signPause is how long after a try that failed the next one comes.
const signPause = time.Second

// try signs or denies a request, again and again until that succeeds, the request is gone or ctx ends.
func (s *Signer) try(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) {
	what := "certificate signing request " + csr.Name + " could not be answered (this is tried again)"
	defer func() { _ = s.Fault(what, nil) }()
	for {
		err := s.sign(ctx, csr.DeepCopy())
		if errors.As(err, new(denial)) {
			s.Log.Error("sign certificate", "request", csr.Name, "err", err)
			return
		}
		if s.Fault(what, err) == nil || !pause.For(ctx, signPause) {
			return
		}
		now, err := s.Client.CertificatesV1().CertificateSigningRequests().Get(ctx, csr.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if err == nil {
			csr = now
		}
	}
}

func judged(csr *certificatesv1.CertificateSigningRequest, verdict certificatesv1.RequestConditionType) bool {
	return slices.ContainsFunc(csr.Status.Conditions,
		func(c certificatesv1.CertificateSigningRequestCondition) bool { return c.Type == verdict })
}

// sign approves and signs a request that is exactly right, and denies any other. An earlier process may have approved it already, and died
// before it signed.
func (s *Signer) sign(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) error {
	api := s.Client.CertificatesV1().CertificateSigningRequests()
	request, err := s.check(ctx, csr)
	var no denial
	if err != nil && !errors.As(err, &no) {
		return err
	}
	verdict := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "VirtualNode",
		Message: "a serving certificate of the virtual node",
	}
	if err != nil {
		verdict.Type, verdict.Reason, verdict.Message = certificatesv1.CertificateDenied, "NotTheVirtualNode", err.Error()
	}
	if !judged(csr, verdict.Type) {
		csr.Status.Conditions = append(csr.Status.Conditions, verdict)
		var updateErr error
		if csr, updateErr = api.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); updateErr != nil {
			return updateErr
		}
	}
	if err != nil {
		return err
	}
	if csr.Status.Certificate, err = s.CA.SignServing(request, time.Now()); err != nil {
		return err
	}
	_, err = api.UpdateStatus(ctx, csr, metav1.UpdateOptions{})
	return err
}

// A denial is why a request is not signed.
type denial string

func (d denial) Error() string { return string(d) }

func deny(format string, a ...any) error { return denial(fmt.Sprintf(format, a...)) }

// check reads a request. Its error is a denial unless the API does not answer.
func (s *Signer) check(ctx context.Context, csr *certificatesv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	request, err := s.checkRequest(csr.Spec)
	if err != nil {
		return nil, err
	}
	pod, err := s.requester(ctx, csr.Spec)
	if err != nil {
		return nil, err
	}
	return request, checkAddress(request, pod)
}

// requester returns the pod whose token made the request, once it has an address.
func (s *Signer) requester(ctx context.Context, spec certificatesv1.CertificateSigningRequestSpec) (*corev1.Pod, error) {
	name, uid := spec.Extra[extraPodName], spec.Extra[extraPodUID]
	if len(name) != 1 || len(uid) != 1 {
		return nil, deny("the request was not made with the token of a pod")
	}
	for end := time.Now().Add(addressPatience); ; {
		pod, err := s.Client.CoreV1().Pods(metav1.NamespaceSystem).Get(ctx, name[0], metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && string(pod.UID) != uid[0]:
			return nil, deny("pod %q, which asked, is gone", name[0])
		case err != nil:
			return nil, err
		case len(pod.Status.PodIPs) > 0:
			return pod, nil
		case time.Now().After(end):
			return nil, deny("pod %q, which asks, has no address", name[0])
		}
		if !pause.For(ctx, 50*time.Millisecond) { // its kubelet reports the address after the container has begun
			return nil, ctx.Err()
		}
	}
}

func checkAddress(request *x509.CertificateRequest, pod *corev1.Pod) error {
	asked, _ := netip.AddrFromSlice(request.IPAddresses[0])
	for _, ip := range pod.Status.PodIPs {
		if has, err := netip.ParseAddr(ip.IP); err == nil && has == asked.Unmap() {
			return nil
		}
	}
	return deny("the request is for address %v, which pod %s, which asks, has not", asked, pod.Name)
}

// checkRequest refuses a request unless it is the connector's for the virtual node, and has nothing that the connector's has not.
func (s *Signer) checkRequest(spec certificatesv1.CertificateSigningRequestSpec) (*x509.CertificateRequest, error) {
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	switch {
	case spec.SignerName != s.Name:
		return nil, deny("the request is for the signer %q", spec.SignerName)
	case spec.Username != plan.ConnectorAccount:
		return nil, deny("%q is not the connector", spec.Username)
	case !slices.Equal(slices.Sorted(slices.Values(spec.Usages)), usages):
		return nil, deny("the request is for usages %q, not for %q", spec.Usages, usages)
	case len(spec.Request) > maxRequest:
		return nil, deny("the request has %d bytes; the limit is %d", len(spec.Request), maxRequest)
	}
	block, rest := pem.Decode(spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(block.Headers) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, deny("the request is not one PEM block CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		return nil, deny("the request cannot be read: %v", err)
	}
	return request, checkContent(request)
}

// checkContent compares what a request asks for with what the connector asks for, address apart.
func checkContent(request *x509.CertificateRequest) error {
	key, ok := request.PublicKey.(*ecdsa.PublicKey)
	switch subject := "CN=system:node:" + plan.VirtualNode + ",O=system:nodes"; {
	case !ok || key.Curve != elliptic.P256():
		return deny("the request's key is not of P-256")
	case request.Subject.String() != subject || len(request.Subject.Names) != 2:
		return deny("the request is for %q, not for %q", request.Subject, subject)
	case !slices.Equal(request.DNSNames, []string{plan.VirtualNode}) || len(request.IPAddresses) != 1:
		return deny("the request is for names %q and addresses %v, not for the virtual node and its address", request.DNSNames,
			request.IPAddresses)
	}
	var names []asn1.RawValue
	if len(request.Extensions) != 1 || !request.Extensions[0].Id.Equal(subjectAltName) {
		return deny("the request has extensions beside its name and address")
	}
	if rest, err := asn1.Unmarshal(request.Extensions[0].Value, &names); err != nil || len(rest) > 0 || len(names) != 2 {
		return deny("the request has names that are neither DNS names nor addresses")
	}
	return nil
}
