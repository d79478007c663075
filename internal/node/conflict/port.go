package conflict

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"packetwalk.dev/internal/base/limitio"
)

// The ports of kube-proxy (k8s.io/kubernetes pkg/cluster/ports/ports.go), which other service proxies have, too.
const (
	metricsPort = 10249
	healthzPort = 10256
)

const (
	askTime   = time.Second // for an answer from this node
	maxAnswer = 64 << 10    // of one, in bytes
	maxTable  = 64 << 20    // of a list of sockets, in bytes
)

// ReadyPath is where packetwalk-node says whether it is ready, as a [Ready].
const ReadyPath = "/readyz"

// Ready is the answer of ReadyPath, as JSON.
type Ready struct {
	Ready bool `json:"ready"`
	// Waiting are the processes that packetwalk-node waits for; Unready is what it has not done. Problems do not make it unready.
	Waiting  []string `json:"waiting,omitempty"`
	Unready  []string `json:"unready,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// listener is a TCP socket that listens.
type listener struct {
	at    netip.AddrPort
	uid   string
	inode string
}

// ports lists the service proxies of others that listen on the ports of kube-proxy in this network namespace, by the files of a directory
// such as /proc/self: only sockets of root's count, and none of this process.
func ports(ctx context.Context, self string) (found []string, err error) {
	var all []listener
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := limitio.ReadFile(filepath.Join(self, "net", table), maxTable)
		if errors.Is(err, fs.ErrNotExist) {
			continue // no IPv6
		}
		if err != nil {
			return nil, err
		}
		all = append(all, listeners(string(text))...)
	}
	own, err := sockets(filepath.Join(self, "fd")) // after those tables, which may have one that was just made
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		if l.uid == "0" && !own[l.inode] && isProxy(ctx, l.at) {
			found = append(found, fmt.Sprintf("a service proxy that listens on %s", l.at))
		}
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// sockets returns the inode numbers of the sockets among a process's open files.
func sockets(dir string) (map[string]bool, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list this process's sockets: %w", err)
	}
	inodes := map[string]bool{}
	for _, f := range files {
		target, _ := os.Readlink(filepath.Join(dir, f.Name())) // closed meanwhile: none of ours
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes, nil
}

// listeners lists those of kube-proxy's ports in the text of /proc/net/tcp or tcp6 (Documentation/networking/proc_net_tcp.rst): address and
// port in hexadecimal, the address as 32-bit words in the machine's order, state 0A (TCP_LISTEN), uid and inode in columns 8 and 10.
func listeners(text string) (found []listener) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != "0A" {
			continue
		}
		at, ok := addrPort(f[1])
		if ok && (at.Port() == metricsPort || at.Port() == healthzPort) {
			found = append(found, listener{at: at, uid: f[7], inode: f[9]})
		}
	}
	return found
}

func addrPort(text string) (netip.AddrPort, bool) {
	address, hexPort, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	port, err2 := strconv.ParseUint(hexPort, 16, 16)
	if err != nil || err2 != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word) // amd64 and arm64 have the lowest byte first
	}
	ip, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip.Unmap(), uint16(port)), ok
}

// isProxy reports whether a service proxy listens on one of kube-proxy's ports. It asks the process there. At the health port every process
// counts as one, except a packetwalk-node that says that it waits itself. At the metrics port a process counts if it has a mode;
// packetwalk-node has none as long as it is no service proxy. A process that does not answer counts: it is alive. A refused connection does
// not count.
func isProxy(ctx context.Context, at netip.AddrPort) bool {
	if at.Port() == metricsPort {
		status, _, err := ask(ctx, at, "/proxyMode")
		return err != nil && !errors.Is(err, syscall.ECONNREFUSED) || status == http.StatusOK
	}
	_, body, err := ask(ctx, at, ReadyPath)
	if err != nil {
		return !errors.Is(err, syscall.ECONNREFUSED)
	}
	var r Ready
	return json.Unmarshal(body, &r) != nil || len(r.Waiting) == 0
}

func ask(ctx context.Context, at netip.AddrPort, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	ip := at.Addr()
	switch {
	case ip.IsUnspecified() && ip.Is4():
		ip = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case ip.IsUnspecified():
		ip = netip.IPv6Loopback()
	}
	url := "http://" + netip.AddrPortFrom(ip, at.Port()).String() + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, nil, err
	}
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext, MaxResponseHeaderBytes: maxAnswer},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return response.StatusCode, body, err
}

// ServiceProxies lists the service proxies of others that are alive in this network namespace, each in words, none where there is none.
// Processes of another pid namespace are found by their ports alone.
func ServiceProxies(ctx context.Context) ([]string, error) {
	byName, err := processes("/proc", "kube-proxy", isKubeProxy)
	byPort, err2 := ports(ctx, "/proc/self")
	return slices.Concat(byName, byPort), errors.Join(err, err2)
}

// MasqAgents lists the ip-masq-agents of others that run in this network namespace.
func MasqAgents() ([]string, error) { return processes("/proc", "ip-masq-agent", isMasqAgent) }
