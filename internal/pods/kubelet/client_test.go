package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// forward makes the kubelet's port reachable on the host's loopback: client-go's stream clients dial themselves.
func (w *world) forward() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close() })
	w.relay = ln.Addr().String()
	go func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := w.node.Dial(context.Background(), "tcp", "10.13.76.4:10250")
			if err != nil {
				in.Close()
				continue
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
}

func (w *world) config(cert tls.Certificate) *rest.Config {
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		w.t.Fatal(err)
	}
	return &rest.Config{Host: "https://" + w.relay, TLSClientConfig: rest.TLSClientConfig{
		Insecure: true, // the server's certificate is checked in TestServerWantsTheAPIServer
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	}}
}

func (w *world) get(cert tls.Certificate, path string) (int, string) {
	w.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		RootCAs: w.pool, ServerName: "node-0", Certificates: []tls.Certificate{cert}}}}
	resp, err := client.Get("https://" + w.relay + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// stream runs a command by the kubelet's exec interface, as the API server does.
func (w *world) stream(path string, query url.Values, o remotecommand.StreamOptions) error {
	w.t.Helper()
	u := &url.URL{Scheme: "https", Host: w.relay, Path: path, RawQuery: query.Encode()}
	e, err := remotecommand.NewSPDYExecutor(w.config(w.admin), http.MethodPost, u)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return e.StreamWithContext(ctx, o)
}

// shell runs a script in a container and gives its output.
func (w *world) shell(container, script string) string {
	w.t.Helper()
	var out bytes.Buffer
	query := url.Values{"command": {"sh", "-c", script}, "output": {"1"}}
	if err := w.stream("/exec/default/"+container, query, remotecommand.StreamOptions{Stdout: &out}); err != nil {
		w.t.Errorf("%s: %v", script, err)
	}
	return out.String()
}
