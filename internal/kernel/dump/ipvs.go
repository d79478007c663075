package dump

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"strconv"
	"strings"

	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/packet"
	"packetwalk.dev/internal/model/snapshot"
)

// ipvsSource is where the kernel tells of the services in the namespace of the thread that reads: it is there with the module.
const ipvsSource = "/proc/thread-self/net/ip_vs"

// maxIPVSFile bounds what is read of IPVS' services, in bytes: one has 60, and as much for each endpoint.
const maxIPVSFile = 256 << 20

// ipvs lists the services of IPVS in a namespace: none without the module.
func ipvs(ns *netns.Namespace) ([]snapshot.VirtualService, error) {
	var text []byte
	if err := ns.Do(func() (err error) {
		text, err = limitio.ReadFile(ipvsSource, maxIPVSFile)
		return err
	}); errors.Is(err, fs.ErrNotExist) {
		return []snapshot.VirtualService{}, nil
	} else if err != nil {
		return nil, err
	}
	services, err := parseIPVS(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ipvsSource, err)
	}
	return services, nil
}

// parseIPVS reads /proc/net/ip_vs: three lines of titles, then a line for each service, "TCP  0A60000A:0035 rr", "TCP  [fd00:…]:0035 rr"
// or "FWM  00000001 rr", and after it one for each of its endpoints, which begins with "->" (net/netfilter/ipvs/ip_vs_ctl.c:
// ip_vs_info_seq_show).
func parseIPVS(text string) ([]snapshot.VirtualService, error) {
	var all []snapshot.VirtualService
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "->" || f[0] == "Prot" || strings.HasPrefix(line, "IP Virtual Server") {
			continue
		}
		s, err := virtualService(f)
		if err != nil {
			return nil, fmt.Errorf("%q is no service: %w", strings.TrimSpace(line), err)
		}
		all = append(all, s)
	}
	return all, nil
}

func virtualService(fields []string) (s snapshot.VirtualService, err error) {
	if len(fields) < 2 {
		return s, fmt.Errorf("it has no address")
	}
	if fields[0] == "FWM" {
		mark, err := strconv.ParseUint(fields[1], 16, 32)
		s.Mark = uint32(mark)
		return s, err
	}
	if number, ok := strings.CutPrefix(fields[0], "IP_"); ok {
		n, err := strconv.ParseUint(number, 10, 8)
		if s.Protocol = packet.Protocol(n); err != nil {
			return s, err
		}
	} else if s.Protocol, err = packet.ParseProtocol(strings.ToLower(fields[0])); err != nil {
		return s, err
	}
	colon := strings.LastIndex(fields[1], ":")
	if colon < 0 {
		return s, fmt.Errorf("it has no port")
	}
	port, err := strconv.ParseUint(fields[1][colon+1:], 16, 16)
	if err != nil {
		return s, err
	}
	a, err := virtualAddress(fields[1][:colon])
	s.Local = netip.AddrPortFrom(a, uint16(port))
	return s, err
}

func virtualAddress(text string) (netip.Addr, error) {
	if inner, ok := strings.CutPrefix(text, "["); ok {
		return netip.ParseAddr(strings.TrimSuffix(inner, "]"))
	}
	word, err := hex.DecodeString(text)
	if err != nil || len(word) != 4 {
		return netip.Addr{}, fmt.Errorf("%q is no address", text)
	}
	return netip.AddrFrom4([4]byte(word)), nil
}
