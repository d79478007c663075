// Package resolver looks names up as a process with some /etc/resolv.conf and /etc/hosts does (glibc: resolv/res_query.c, nss/nss_files).
// Name servers and files are not trusted: the answers, the time and the number of questions are bounded.
package resolver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"packetwalk.dev/internal/model/witness"
)

// Limits of a look-up. glibc takes three name servers, 15 dots and as many search domains as there are.
const (
	mostServers   = 3
	mostDomains   = 32
	mostDots      = 15
	mostAttempts  = 5
	mostAddresses = 64
	mostAliases   = 16
	// mostStray is how many messages that do not answer the question are passed over.
	mostStray = 16
	longest   = 20 * time.Second // of the look-up
)

// Files are a process's /etc/resolv.conf and /etc/hosts.
type Files struct{ ResolvConf, Hosts []byte }

// Dial opens a connection to a literal address and port.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// LookUp returns the addresses of a name, which is not completed by the search list where it ends in a dot. LookUp returns
// an error only if ctx was cancelled, not for a name without addresses or without an answer.
func LookUp(ctx context.Context, dial Dial, files Files, name string) (witness.Lookup, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longest, fmt.Errorf("no answer within %s", longest))
	defer cancel()
	absolute := strings.HasSuffix(name, ".")
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	c := parse(files.ResolvConf)
	if addresses := hosts(files.Hosts, name); len(addresses) > 0 {
		return c.lookup(name, addresses, witness.HostsFile), nil
	}
	none := c.lookup(name, nil, c.servers[0])
	var failed error // of the first name that was not answered: it may exist
	for _, candidate := range c.candidates(name, absolute) {
		found, err := c.ask(ctx, dial, candidate)
		switch {
		case errors.Is(ctx.Err(), context.Canceled):
			return witness.Lookup{}, context.Cause(ctx)
		case ctx.Err() != nil:
			none.Unanswered = fmt.Sprintf("ask %s for %s: %v", none.Server, candidate, context.Cause(ctx))
			return none, nil
		case len(found.Addresses) > 0:
			if failed != nil {
				found.Unanswered = strings.TrimPrefix(found.Unanswered+"; a name before it may exist: "+failed.Error(), "; ")
			}
			return found, nil
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		none.Unanswered = failed.Error()
	}
	return none, nil
}

// lookup returns what a server, or a file, has for a name.
func (c *config) lookup(name string, addresses []netip.Addr, server string) witness.Lookup {
	n := min(len(addresses), mostAddresses)
	if at, err := netip.ParseAddrPort(server); err == nil {
		server = at.Addr().Unmap().WithZone("").String()
	}
	return witness.Lookup{Name: name, Addresses: addresses[:n], More: len(addresses) - n, Server: server, OverTCP: c.overTCP}
}

// hosts returns the addresses that a hosts(5) file has for a name.
func hosts(text []byte, name string) (all []netip.Addr) {
	for line := range bytes.Lines(text) {
		line, _, _ = bytes.Cut(line, []byte("#"))
		fields := strings.Fields(string(line))
		if len(fields) < 2 || !slices.ContainsFunc(fields[1:], func(f string) bool { return strings.EqualFold(f, name) }) {
			continue
		}
		if a, err := netip.ParseAddr(fields[0]); err == nil {
			all = add(all, a)
		}
	}
	return all
}

func add(all []netip.Addr, a netip.Addr) []netip.Addr {
	if a = a.Unmap().WithZone(""); slices.Contains(all, a) {
		return all
	}
	return append(all, a)
}

// config holds the settings of a resolv.conf(5).
type config struct {
	servers  []string // ADDRESS:PORT
	search   []string
	dots     int
	attempts int
	timeout  time.Duration
	overTCP  bool
}

func parse(text []byte) *config {
	c := &config{dots: 1, attempts: 2, timeout: 5 * time.Second}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 || strings.ContainsAny(fields[0], "#;") {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if a, err := netip.ParseAddr(fields[1]); err == nil && len(c.servers) < mostServers {
				c.servers = append(c.servers, netip.AddrPortFrom(a, 53).String())
			}
		case "domain", "search": // the last of them counts
			c.search = fields[1:min(len(fields), mostDomains+1)]
			if fields[0] == "domain" {
				c.search = fields[1:2]
			}
		case "options":
			c.options(fields[1:])
		}
	}
	if len(c.servers) == 0 {
		c.servers = []string{"127.0.0.1:53"}
	}
	return c
}

func (c *config) options(words []string) {
	for _, word := range words {
		name, value, _ := strings.Cut(word, ":")
		n, err := strconv.Atoi(value)
		switch {
		case name == "use-vc":
			c.overTCP = true
		case err != nil || n < 0:
		case name == "ndots":
			c.dots = min(n, mostDots)
		case name == "attempts":
			c.attempts = min(max(n, 1), mostAttempts)
		case name == "timeout":
			c.timeout = time.Duration(min(max(n, 1), 30)) * time.Second
		}
	}
}

// candidates returns the whole names that are asked for, one after the other: with enough dots first the name as it is.
func (c *config) candidates(name string, absolute bool) (all []string) {
	if absolute {
		return []string{name}
	}
	for _, domain := range c.search {
		whole := strings.TrimSuffix(name+"."+strings.ToLower(strings.Trim(domain, ".")), ".")
		if isHostName(whole) {
			all = append(all, whole)
		}
	}
	if strings.Count(name, ".") >= c.dots {
		return append([]string{name}, all...)
	}
	return append(all, name)
}

// isHostName reports whether a name can be a host's, as getaddrinfo(3) takes it (res_hnok). Who writes the search list may be anyone.
func isHostName(name string) bool {
	_, ok := dns.IsDomainName(name)
	return ok && len(name) < 254 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == ""
}

// ask asks the name servers for the addresses of a whole name. Without any, the error is why none of them answered; nil where one did. Like
// libc it takes one family's addresses where the question about the other's fails.
func (c *config) ask(ctx context.Context, dial Dial, name string) (found witness.Lookup, err error) {
	for range c.attempts {
		for _, server := range c.servers {
			type reply struct {
				addresses []netip.Addr
				err       error
			}
			v6 := make(chan reply, 1)
			go func() {
				addresses, err := c.exchange(ctx, dial, server, name, dns.TypeAAAA)
				v6 <- reply{addresses, err}
			}()
			v4, err4 := c.exchange(ctx, dial, server, name, dns.TypeA)
			r := <-v6
			fault := cmp.Or(err4, r.err)
			if addresses := slices.Concat(v4, r.addresses); len(addresses) > 0 {
				found = c.lookup(name, addresses, server)
				if fault != nil {
					family := "IPv4"
					if err4 == nil {
						family = "IPv6"
					}
					found.Unanswered = fmt.Sprintf("%s addresses unknown: %v", family, fault)
				}
				return found, nil
			}
			if fault == nil {
				return found, nil
			}
			host := c.lookup(name, nil, server).Server
			if err = cmp.Or(err, fmt.Errorf("ask %s for %s: %w", host, name, fault)); ctx.Err() != nil {
				return found, err
			}
		}
	}
	return found, err
}

// exchange asks one server one question, over TCP where the answer does not fit into a datagram.
func (c *config) exchange(ctx context.Context, dial Dial, server, name string, kind uint16) ([]netip.Addr, error) {
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), kind)
	networks := []string{"udp", "tcp"}
	if c.overTCP {
		networks = networks[1:]
	}
	var answer *dns.Msg
	for _, network := range networks {
		var err error
		if answer, err = c.exchangeBy(ctx, dial, network, server, question); err != nil {
			return nil, err
		}
		if !answer.Truncated {
			break
		}
	}
	switch answer.Rcode {
	case dns.RcodeSuccess:
		return addressesOf(answer, dns.Fqdn(name), kind)
	case dns.RcodeNameError:
		return nil, nil
	}
	return nil, fmt.Errorf("it says %s", cmp.Or(dns.RcodeToString[answer.Rcode], strconv.Itoa(answer.Rcode)))
}

func (c *config) exchangeBy(ctx context.Context, dial Dial, network, server string, question *dns.Msg) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := dial(ctx, network, server)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	d := &dns.Conn{Conn: conn, UDPSize: dns.MaxMsgSize}
	if err := d.WriteMsg(question); err != nil {
		return nil, err
	}
	for range mostStray {
		answer, err := d.ReadMsg()
		switch {
		case errors.Is(err, io.EOF), err != nil && answer == nil:
			if ctx.Err() != nil {
				err = fmt.Errorf("no answer within %s", c.timeout)
			}
			return nil, err
		case err == nil && isAnswer(answer, question):
			return answer, nil
		}
	}
	return nil, errors.New("its messages answer another question")
}

func isAnswer(answer, question *dns.Msg) bool {
	if answer.Id != question.Id || !answer.Response || len(answer.Question) != 1 {
		return false
	}
	a, q := answer.Question[0], question.Question[0]
	return a.Qtype == q.Qtype && a.Qclass == q.Qclass && strings.EqualFold(a.Name, q.Name)
}

// addressesOf returns the addresses of a name in an answer, through its aliases. Records of other names do not count.
func addressesOf(answer *dns.Msg, name string, kind uint16) (all []netip.Addr, err error) {
	for range mostAliases {
		alias := ""
		for _, record := range answer.Answer {
			if !strings.EqualFold(record.Header().Name, name) || record.Header().Class != dns.ClassINET {
				continue
			}
			var raw net.IP
			switch r := record.(type) {
			case *dns.A:
				raw = r.A.To4()
			case *dns.AAAA:
				raw = r.AAAA
			case *dns.CNAME:
				alias = r.Target
			}
			if a, ok := netip.AddrFromSlice(raw); ok && record.Header().Rrtype == kind {
				all = add(all, a)
			}
		}
		if len(all) > 0 || alias == "" {
			return all, nil
		}
		name = alias
	}
	return nil, errors.New("its aliases (CNAME) do not end")
}
