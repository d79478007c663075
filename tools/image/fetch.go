package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/limitio"
)

// longestDownload bounds the download of one package, on a slow line.
const longestDownload = 5 * time.Minute

// fetch returns a package's file in the cache, whose digest is right.
func fetch(ctx context.Context, mirror string, l lockedPackage) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache: %w; set HOME or XDG_CACHE_HOME", err)
	}
	file := filepath.Join(cache, "packetwalk", "debian", l.sha256+".deb")
	if content, err := limitio.ReadFile(file, l.size); err == nil && sum(content) == l.sha256 {
		return file, nil
	}
	content, err := download(ctx, mirror, l)
	if err != nil {
		return "", fmt.Errorf("package %s %s for %s: %w", l.name, l.version, l.image, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	return file, atomicfile.Write(file, content, 0o644)
}

func download(ctx context.Context, mirror string, l lockedPackage) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longestDownload, fmt.Errorf("the mirror took longer than %v", longestDownload))
	defer cancel()
	address := mirror + "/" + (&url.URL{Path: l.path}).EscapedPath()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusGone:
		return nil, fmt.Errorf("the mirror no longer has %s: Debian has a newer version; take that with make image LOCK=update, and look at what "+
			"git diff %s shows", address, lockFile)
	default:
		return nil, fmt.Errorf("%s: %s", address, answer.Status)
	}
	content, err := limitio.Read(answer.Body, l.size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	if s := sum(content); s != l.sha256 {
		return nil, fmt.Errorf("%s has other content, %d bytes with SHA-256 %s and not %d with %s: it is not the package that was locked",
			address, len(content), s, l.size, l.sha256)
	}
	return content, nil
}

func sum(content []byte) string { return fmt.Sprintf("%x", sha256.Sum256(content)) }
