package aci

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gorilla/websocket"

	"packetwalk.dev/internal/base/logs"
)

// Client asks the resource provider over HTTP. It is a Service.
type Client struct {
	Endpoint      string // "https://management.azure.com"
	Subscription  string
	ResourceGroup string
	Token         func() (string, error) // the bearer token, as it is now
	TLS           *tls.Config
	HTTP          *http.Client // with this TLS configuration
}

var _ Service = (*Client)(nil)

// NewClient makes a client that trusts the certificates of a TLS configuration.
func NewClient(endpoint, subscription, resourceGroup string, token func() (string, error), config *tls.Config) *Client {
	return &Client{
		Endpoint: endpoint, Subscription: subscription, ResourceGroup: resourceGroup, Token: token, TLS: config,
		// Connections are few and kept: each takes an outbound port of the node.
		HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: 4, MaxConnsPerHost: 16,
			IdleConnTimeout: time.Minute}},
	}
}

func (c *Client) path(elem ...string) string {
	path := "/subscriptions/" + url.PathEscape(c.Subscription) + "/resourceGroups/" + url.PathEscape(c.ResourceGroup) + "/providers/" + Type
	for _, e := range elem {
		path += "/" + url.PathEscape(e)
	}
	return path
}

// do sends a request and decodes the answer; v and body may be nil.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, body, v any) error {
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(data)
	}
	if query == nil {
		query = url.Values{}
	}
	query.Set("api-version", APIVersion)
	req, err := http.NewRequestWithContext(ctx, method, c.Endpoint+path+"?"+query.Encode(), in)
	if err != nil {
		return err
	}
	token, err := c.Token()
	if err != nil {
		return fmt.Errorf("credentials for %s: %w", c.Endpoint, err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		return failure(resp)
	}
	if v == nil || resp.StatusCode == http.StatusNoContent {
		_, err = io.Copy(io.Discard, resp.Body) // so that the connection is used again
		return err
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// failure returns the error that an answer carries.
func failure(resp *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<16))
	var body struct{ Error *Error }
	if json.Unmarshal(text, &body) != nil || body.Error == nil {
		return &Error{resp.StatusCode, resp.Status, string(text)}
	}
	body.Error.Status = resp.StatusCode
	return body.Error
}

// Put implements Service.
func (c *Client) Put(ctx context.Context, g ContainerGroup) (made ContainerGroup, err error) {
	err = c.do(ctx, http.MethodPut, c.path(g.Name), nil, g, &made)
	return made, err
}

// Get implements Service.
func (c *Client) Get(ctx context.Context, name string) (g ContainerGroup, err error) {
	err = c.do(ctx, http.MethodGet, c.path(name), nil, nil, &g)
	return g, err
}

// List implements Service, without views.
func (c *Client) List(ctx context.Context) ([]ContainerGroup, error) {
	var all groupList
	err := c.do(ctx, http.MethodGet, c.path(), nil, nil, &all)
	return all.Value, err
}

// Delete implements Service. A group that does not exist is no error.
func (c *Client) Delete(ctx context.Context, name, uid string, grace time.Duration) error {
	query := url.Values{"gracePeriodSeconds": {strconv.Itoa(int(grace.Round(time.Second) / time.Second))}}
	if uid != "" {
		query.Set("uid", uid)
	}
	return c.do(ctx, http.MethodDelete, c.path(name), query, nil, nil)
}

// Logs implements Service.
func (c *Client) Logs(ctx context.Context, group, container string, o logs.Options, w io.Writer) error {
	if o.Follow {
		return c.followLogs(ctx, group, container, o, w)
	}
	options, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var log logContent
	if err := c.do(ctx, http.MethodGet, c.path(group, "containers", container, "logs"), url.Values{"options": {string(options)}}, nil,
		&log); err != nil {
		return err
	}
	_, err = io.WriteString(w, log.Content)
	return err
}

func (c *Client) followLogs(ctx context.Context, group, container string, o logs.Options, w io.Writer) error {
	s, stop, err := c.session(ctx, c.path(group, "containers", container, "attach"), o)
	if err != nil {
		return err
	}
	defer stop()
	_, err = s.copyOutput(w, nil)
	return err
}

// Exec implements Service.
func (c *Client) Exec(ctx context.Context, group, container string, e Exec) (code int, err error) {
	if len(e.Command) == 0 {
		return -1, BadRequest("InvalidRequestContent", "The request content was invalid: a command is needed.")
	}
	request := execRequest{Command: e.Command[0], Arguments: e.Command[1:], TTY: e.TTY, Stdin: e.Stdin != nil}
	s, stop, err := c.session(ctx, c.path(group, "containers", container, "exec"), request)
	if err != nil {
		return -1, err
	}
	defer stop()
	if e.Stdin != nil {
		go s.sendInput(e.Stdin)
	}
	if e.Resize != nil {
		over := make(chan struct{})
		defer close(over)
		go s.sendSizes(e.Resize, over)
	}
	return s.copyOutput(e.Stdout, e.Stderr)
}

// session asks for one and begins it. It ends with ctx, or when stop is called.
func (c *Client) session(ctx context.Context, path string, request any) (s *stream, stop func(), err error) {
	var g sessionGrant
	if err := c.do(ctx, http.MethodPost, path, nil, request, &g); err != nil {
		return nil, nil, err
	}
	dialer := websocket.Dialer{TLSClientConfig: c.TLS, HandshakeTimeout: sessionPatience}
	conn, resp, err := dialer.DialContext(ctx, g.URI, nil)
	if resp != nil && resp.Body != nil {
		resp.Body.Close()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("begin session: %w", err)
	}
	conn.SetReadLimit(maxMessage)
	if err := conn.WriteMessage(websocket.TextMessage, []byte(g.Password)); err != nil {
		conn.Close()
		return nil, nil, fmt.Errorf("begin session: %w", err)
	}
	unhook := context.AfterFunc(ctx, func() { conn.Close() })
	return &stream{conn: conn}, func() { unhook(); conn.Close() }, nil
}

func (c *stream) sendInput(r io.Reader) {
	buf := make([]byte, 16<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 && c.send(channelStdin, buf[:n]) != nil {
			return
		}
		if err != nil {
			_ = c.send(channelEOF, nil) // a command that has ended does not care
			return
		}
	}
}

func (c *stream) sendSizes(sizes <-chan Size, over <-chan struct{}) {
	for {
		select {
		case s, ok := <-sizes:
			if !ok {
				return
			}
			data, _ := json.Marshal(terminalSize{s.Width, s.Height})
			if c.send(channelResize, data) != nil {
				return
			}
		case <-over:
			return
		}
	}
}
