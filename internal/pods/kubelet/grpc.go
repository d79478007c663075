package kubelet

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
)

// serving is HealthCheckResponse.ServingStatus's SERVING (grpc.health.v1).
const serving = 1

// health is a probe by gRPC's health checking protocol: one request over HTTP/2 without TLS (github.com/grpc/grpc, doc/health-checking.md,
// doc/PROTOCOL-HTTP2.md).
func (t target) health(ctx context.Context, g *corev1.GRPCAction) error {
	var service []byte // HealthCheckRequest
	if g.Service != nil && *g.Service != "" {
		service = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), *g.Service)
	}
	url := "http://" + net.JoinHostPort(t.ip, strconv.Itoa(int(g.Port))) + "/grpc.health.v1.Health/Check"
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(frame(service)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("TE", "trailers")
	req.Header.Set("User-Agent", "kube-probe/1.35")
	transport := &http.Transport{DialContext: t.dial, Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("service health check: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 10<<10))
	if err != nil {
		return fmt.Errorf("service health check: %w", err)
	}
	status := cmp.Or(resp.Trailer.Get("Grpc-Status"), resp.Header.Get("Grpc-Status"))
	if resp.StatusCode != http.StatusOK || status != "0" {
		return fmt.Errorf("service health check failed: HTTP status %d, gRPC status %q: %s", resp.StatusCode, status,
			cmp.Or(resp.Trailer.Get("Grpc-Message"), resp.Header.Get("Grpc-Message")))
	}
	answer, err := servingStatus(body)
	if err != nil {
		return fmt.Errorf("service health check: %w", err)
	}
	if answer != serving {
		return fmt.Errorf("service unhealthy (responded with %d)", answer)
	}
	return nil
}

// frame is a message as gRPC sends it: not compressed, with its length.
func frame(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

var errHealth = errors.New("the answer is no HealthCheckResponse")

// servingStatus reads a frame with a HealthCheckResponse.
func servingStatus(body []byte) (status uint64, err error) {
	if len(body) < 5 || body[0] != 0 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		return 0, errHealth
	}
	for rest := body[5:]; len(rest) > 0; {
		field, kind, n := protowire.ConsumeTag(rest)
		if n < 0 {
			return 0, errHealth
		}
		rest = rest[n:]
		if n = protowire.ConsumeFieldValue(field, kind, rest); n < 0 {
			return 0, errHealth
		}
		if field == 1 && kind == protowire.VarintType {
			status, _ = protowire.ConsumeVarint(rest)
		}
		rest = rest[n:]
	}
	return status, nil
}
