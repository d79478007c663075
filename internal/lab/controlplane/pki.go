package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"

	"packetwalk.dev/internal/base/atomicfile"
)

// User is a client identity: the certificate's common name is the user's name and its organisations are the groups
// (https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates).
type User struct {
	Name   string   // file name, and name in kubeconfigs
	Common string   // Kubernetes user name
	Groups []string // Kubernetes groups
}

// The identities of a lab. Those named system: have their roles from upstream's RBAC bootstrap.
var (
	Admin                 = User{Name: "admin", Common: "kubernetes-admin", Groups: []string{"system:masters"}}
	ControllerManagerUser = User{Name: ControllerManager, Common: "system:kube-controller-manager"}
	SchedulerUser         = User{Name: Scheduler, Common: "system:kube-scheduler"}
	// NodeAgentUser is what a node agent runs as: like kube-proxy it reads nodes, Services and EndpointSlices.
	NodeAgentUser = User{Name: "kube-proxy", Common: "system:kube-proxy"}
	// FelixUser is the service account of Calico's agent.
	FelixUser = User{Name: "calico-node", Common: "system:serviceaccount:calico-system:calico-node",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:calico-system"}}
	// KubeletClientUser is the API server as a client of kubelets.
	KubeletClientUser = User{Name: "kube-apiserver-kubelet-client", Common: "kube-apiserver-kubelet-client"}
	// FrontProxyUser is the API server as a client of aggregated API servers.
	FrontProxyUser = User{Name: "front-proxy-client", Common: "front-proxy-client"}
)

// NodeUser returns the kubelet of a real node: the Node authorizer and the admission plugin NodeRestriction let it do what concerns that
// node (https://kubernetes.io/docs/reference/access-authn-authz/node/).
func NodeUser(node string) User {
	return User{Name: "kubelet", Common: "system:node:" + node, Groups: []string{"system:nodes"}}
}

// validity is how long certificates hold: longer than any lab lives, so that nothing rotates.
const validity = 10 * 365 * 24 * time.Hour

// KeyPair is a certificate and its private key, PEM.
type KeyPair struct {
	Certificate []byte
	Key         []byte // PKCS #8
}

// Authority is the lab's certificate authority: it signs servers and clients alike.
type Authority struct {
	KeyPair
	certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority makes an authority with a new key (ECDSA P-256: milliseconds, where RSA takes a second).
func NewAuthority(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template, err := template(pkix.Name{CommonName: name}, now)
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	pair, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	return parseAuthority(pair)
}

// parseAuthority reads an authority from PEM.
func parseAuthority(pair KeyPair) (*Authority, error) {
	parsed, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	key, ok := parsed.PrivateKey.(crypto.Signer)
	if !ok || !parsed.Leaf.IsCA {
		return nil, errors.New("certificate authority: the certificate is none of an authority")
	}
	return &Authority{KeyPair: pair, certificate: parsed.Leaf, key: key}, nil
}

// loadAuthority reads the lab's authority from its folder.
func loadAuthority(config Config) (*Authority, error) {
	certificate, err := os.ReadFile(config.pki("ca.crt"))
	if err != nil {
		return nil, err
	}
	key, err := os.ReadFile(config.pki("ca.key"))
	if err != nil {
		return nil, err
	}
	return parseAuthority(KeyPair{Certificate: certificate, Key: key})
}

// Client issues a client certificate for user.
func (a *Authority) Client(user User, now time.Time) (KeyPair, error) {
	return a.issue(pkix.Name{CommonName: user.Common, Organization: user.Groups}, x509.ExtKeyUsageClientAuth, nil, nil, now)
}

// Kubelet issues the serving certificate of a node's kubelet.
func (a *Authority) Kubelet(node string, address netip.Addr, now time.Time) (tls.Certificate, error) {
	return parsed(a.KubeletPair(node, address, now))
}

// KubeletPair returns Kubelet's certificate and key as PEM.
func (a *Authority) KubeletPair(node string, address netip.Addr, now time.Time) (KeyPair, error) {
	user := NodeUser(node)
	return a.issue(pkix.Name{CommonName: user.Common, Organization: user.Groups}, x509.ExtKeyUsageServerAuth, []string{node},
		[]netip.Addr{address}, now)
}

// Serving issues the serving certificate of something that is no part of the control plane.
func (a *Authority) Serving(name string, now time.Time, addresses ...netip.Addr) (tls.Certificate, error) {
	return parsed(a.issue(pkix.Name{CommonName: name}, x509.ExtKeyUsageServerAuth, []string{name}, addresses, now))
}

func parsed(pair KeyPair, err error) (tls.Certificate, error) {
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(pair.Certificate, pair.Key)
}

// SignServing signs a request for a serving certificate with the names and addresses that it asks for: who calls it has looked at them.
func (a *Authority) SignServing(request *x509.CertificateRequest, now time.Time) ([]byte, error) {
	template, err := template(request.Subject, now)
	if err != nil {
		return nil, err
	}
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames, template.IPAddresses = request.DNSNames, request.IPAddresses
	certificate, err := x509.CreateCertificate(rand.Reader, template, a.certificate, request.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %s: %w", request.Subject, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), nil
}

// Server issues the API server's serving certificate, for every name that pods and people reach it by.
func (a *Authority) Server(config Config, now time.Time) (KeyPair, error) {
	names := []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	addresses := []netip.Addr{config.Address, config.KubernetesService(), netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	return a.issue(pkix.Name{CommonName: APIServer}, x509.ExtKeyUsageServerAuth, names, addresses, now)
}

func (a *Authority) issue(subject pkix.Name, usage x509.ExtKeyUsage, names []string, addresses []netip.Addr, now time.Time) (KeyPair,
	error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, err
	}
	template, err := template(subject, now)
	if err != nil {
		return KeyPair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{usage}
	template.DNSNames = names
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	return sign(template, a.certificate, key, a.key)
}

// template returns what all certificates share. They hold from an hour back, so that a clock set back does not break a lab.
func template(subject pkix.Name, now time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity)}, nil
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) (KeyPair, error) {
	certificate, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return KeyPair{}, fmt.Errorf("sign certificate of %s: %w", template.Subject, err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return KeyPair{}, err
	}
	return KeyPair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}, nil
}

// serviceAccountKey makes the key pair that signs and verifies service account tokens: PEM private and public key.
func serviceAccountKey() (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	privateDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	publicDER, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: privateDER}),
		pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: publicDER}), nil
}

// Prepare makes the lab's folders and everything that the components read: keys, certificates, kubeconfigs and configuration files, for
// their owner only. A folder that has an authority already is left as it is but for the configuration files: tokens and kubeconfigs given
// out stay good.
func Prepare(config Config, now time.Time) (*Authority, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	for _, dir := range []string{config.Dir, config.PKIDir(), config.etcdDir(), config.logDir()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	authority, err := loadAuthority(config)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if authority, err = createPKI(config, now); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	}
	if err := ensureFrontProxy(config, now); err != nil {
		return nil, err
	}
	if err := ensureCloudController(config, authority, now); err != nil {
		return nil, err
	}
	return authority, writeFiles(configurationFiles(config))
}

// ensureFrontProxy creates the API server's identity for aggregated API servers, which a lab of an older version lacks. The identity's
// authority signs nothing else, and its key is not stored.
func ensureFrontProxy(config Config, now time.Time) error {
	last := config.pki("front-proxy-client.crt")
	if _, err := os.Stat(last); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	authority, err := NewAuthority("packetwalk front proxy "+config.ClusterName, now)
	if err != nil {
		return err
	}
	client, err := authority.Client(FrontProxyUser, now)
	if err != nil {
		return err
	}
	return writeFiles([]file{{config.pki("front-proxy-ca.crt"), authority.Certificate}, {config.pki("front-proxy-client.key"), client.Key},
		{last, client.Certificate}})
}

// ensureCloudController creates the kubeconfig of the cloud controllers, which a lab of an older version lacks.
func ensureCloudController(config Config, authority *Authority, now time.Time) error {
	path := config.KubeconfigPath(CloudControllerUser)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	text, err := authority.Kubeconfig(config.ClusterName, config.Server(), CloudControllerUser, now)
	if err != nil {
		return err
	}
	return writeFiles([]file{{path, text}})
}

// createPKI makes all keys. The authority is written last: where it is, the rest is whole.
func createPKI(config Config, now time.Time) (*Authority, error) {
	authority, err := NewAuthority("packetwalk "+config.ClusterName, now)
	if err != nil {
		return nil, err
	}
	files, err := pkiFiles(config, authority, now)
	if err != nil {
		return nil, err
	}
	files = append(files, file{config.pki("ca.key"), authority.Key}, file{config.pki("ca.crt"), authority.Certificate})
	return authority, writeFiles(files)
}

// file is one file to write.
type file struct {
	path string
	text []byte
}

func writeFiles(files []file) error {
	for _, file := range files {
		if err := atomicfile.Write(file.path, file.text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func pkiFiles(config Config, authority *Authority, now time.Time) ([]file, error) {
	server, err := authority.Server(config, now)
	if err != nil {
		return nil, err
	}
	kubeletClient, err := authority.Client(KubeletClientUser, now)
	if err != nil {
		return nil, err
	}
	private, public, err := serviceAccountKey()
	if err != nil {
		return nil, err
	}
	files := []file{
		{config.pki("apiserver.crt"), server.Certificate}, {config.pki("apiserver.key"), server.Key},
		{config.pki("kubelet-client.crt"), kubeletClient.Certificate}, {config.pki("kubelet-client.key"), kubeletClient.Key},
		{config.pki("sa.key"), private}, {config.pki("sa.pub"), public},
	}
	for _, user := range []User{Admin, ControllerManagerUser, SchedulerUser, NodeAgentUser} {
		text, err := authority.Kubeconfig(config.ClusterName, config.Server(), user, now)
		if err != nil {
			return nil, err
		}
		files = append(files, file{config.KubeconfigPath(user), text})
	}
	return files, nil
}
