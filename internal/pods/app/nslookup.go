package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"
)

// nslookup asks the name server of /etc/resolv.conf, or the one that is named, for a name's addresses or an address's names, the way that
// busybox's and bind's do it: nslookup NAME [SERVER].
func nslookup(ctx context.Context, p *Process) int {
	var words []string
	for _, arg := range p.Args[1:] {
		if !strings.HasPrefix(arg, "-") { // -type= and the like: always all addresses
			words = append(words, arg)
		}
	}
	if len(words) < 1 || len(words) > 2 {
		fmt.Fprintln(p.Stderr, "usage: nslookup NAME [SERVER]")
		return 2
	}
	p.Ready()
	servers := nameServers()
	resolver := &net.Resolver{PreferGo: true}
	if len(words) == 2 {
		servers = words[1:]
		resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(words[1], "53"))
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if len(servers) > 0 {
		fmt.Fprintf(p.Stdout, "Server:\t\t%s\nAddress:\t%s\n\n", servers[0], net.JoinHostPort(servers[0], "53"))
	}
	if err := lookUp(ctx, p, resolver, words[0]); err != nil {
		fmt.Fprintf(p.Stdout, "** server can't find %s: %s\n", words[0], dnsFailure(err))
		return 1
	}
	return 0
}

func lookUp(ctx context.Context, p *Process, r *net.Resolver, name string) error {
	if net.ParseIP(name) != nil {
		names, err := r.LookupAddr(ctx, name)
		for _, n := range names {
			fmt.Fprintf(p.Stdout, "%s\tname = %s\n", name, n)
		}
		return err
	}
	addresses, err := r.LookupHost(ctx, name)
	if err != nil {
		return err
	}
	// The name that was found has the search domain that was it.
	full, err := r.LookupCNAME(ctx, name)
	if err != nil {
		full = name
	}
	for _, a := range addresses {
		fmt.Fprintf(p.Stdout, "Name:\t%s\nAddress: %s\n", strings.TrimSuffix(full, "."), a)
	}
	return nil
}

func dnsFailure(err error) string {
	var failure *net.DNSError
	if errors.As(err, &failure) && failure.IsNotFound {
		return "NXDOMAIN"
	}
	return err.Error()
}

// nameServers returns those of resolv.conf(5).
func nameServers() (servers []string) {
	file, err := os.Open("/etc/resolv.conf")
	if err != nil {
		return nil
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 1 && f[0] == "nameserver" {
			servers = append(servers, f[1])
		}
	}
	return servers
}
