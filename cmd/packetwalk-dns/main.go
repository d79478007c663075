// Command packetwalk-dns is a name server for the lab's internet: Azure's, and the one of the internet's hosts. A lab runs two, as the
// application dns. Its arguments are names, "name=address[,address…]"; a name "*.zone" answers for every name below the zone. The main
// holds flags and exit codes only.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"packetwalk.dev/internal/addons/dns"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	s, address, err := server(args)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-dns: %v\n", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := s.Serve(ctx, address, func() {}); err != nil {
		fmt.Fprintf(os.Stderr, "packetwalk-dns: %v\n", err)
		return 1
	}
	return 0
}

func server(args []string) (s *dns.Server, address string, err error) {
	f := flag.NewFlagSet("packetwalk-dns", flag.ContinueOnError)
	listen := f.String("listen", "", "`address` to answer at, from which the answers then come; without one, all")
	zone := f.String("zone", "", "`name` of a zone whose names are in a file, which is read again when it has changed")
	file := f.String("zone-file", "", "that `file`, with a name and an address a line")
	key := f.String("tsig-keyname", "",
		"`name` of the key whose holder may change the zone by DNS updates (RFC 2136) and transfer it; without one, no client may")
	keyFile := f.String("tsig-secret-file", "", "`file` with the key's secret for hmac-sha256, in base64")
	if err := f.Parse(args); err != nil {
		return nil, "", err
	}
	if (*zone == "") != (*file == "") || (*key == "") != (*keyFile == "") || *key != "" && *zone == "" {
		return nil, "", errors.New("--zone needs --zone-file, and --tsig-keyname needs --tsig-secret-file and --zone")
	}
	s = &dns.Server{Log: os.Stdout}
	if *zone != "" {
		s.Zone = &dns.Zone{Name: strings.ToLower(*zone), File: *file}
	}
	if *key != "" {
		if s.Key, err = dns.ReadKey(*key, *keyFile); err != nil {
			return nil, "", err
		}
	}
	s.Names, err = dns.ParseRecords(f.Args())
	return s, net.JoinHostPort(*listen, "53"), err
}
