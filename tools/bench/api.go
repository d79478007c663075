package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
)

// An api is the way to a lab's API server, by the kubeconfig that the lab wrote.
type api struct {
	server string
	client *http.Client
}

// kubeconfigField is one of the four fields that are read of a kubeconfig with one cluster and one user.
var kubeconfigField = regexp.MustCompile(`(?m)^ *(server|certificate-authority-data|client-certificate-data|client-key-data): (\S+)$`)

func (l *lab) api() (*api, error) {
	text, err := os.ReadFile(filepath.Join("/run/packetwalk", l.name, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	field := map[string]string{}
	for _, m := range kubeconfigField.FindAllStringSubmatch(string(text), -1) {
		field[m[1]] = m[2]
	}
	var errs []error
	pem := func(name string) []byte {
		b, err := base64.StdEncoding.DecodeString(field[name])
		if err == nil && len(b) == 0 {
			err = errors.New("it is empty")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("kubeconfig: %s: %w", name, err))
		}
		return b
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem("certificate-authority-data"))
	pair, err := tls.X509KeyPair(pem("client-certificate-data"), pem("client-key-data"))
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair},
		MinVersion: tls.VersionTLS12}}
	return &api{field["server"], &http.Client{Transport: transport}}, nil
}

// watch gives the stream of a list's watch events to read, on a goroutine of its own, until the context ends.
func (a *api) watch(ctx context.Context, path string, read func(io.Reader)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.server+path+"?watch=true", nil)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req) //nolint:bodyclose // the goroutine closes it
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	go func() {
		defer resp.Body.Close()
		read(resp.Body)
	}()
	return nil
}
