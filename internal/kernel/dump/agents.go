package dump

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"

	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/model/snapshot"
)

// agentRole finds a role of packetwalk-node in a line of /proc/net/unix. The process that has the role listens at an abstract socket with
// its name and random text (node/conflict). Flag 0x10000 says that it listens (net/unix/af_unix.c, __SO_ACCEPTCON).
var agentRole = regexp.MustCompile(`^[0-9a-f]+: [0-9A-F]+ [0-9A-F]+ 00010000 [0-9A-F]+ [0-9A-F]+ +\d+ @packetwalk-node/(service-proxy|ip-masq-agent)(?:#[A-Z2-7]*)?\n?$`)

// maxUnixFile is how much of a list of sockets is read, in bytes.
const maxUnixFile = 256 << 20

// Agents lists the packetwalk-nodes of a namespace, one for each role. Any user can have such a name, so one does not
// prove that packetwalk-node runs; without one it does not.
func Agents(ns *netns.Namespace) (found []snapshot.Agent, err error) {
	err = ns.Do(func() error {
		file, err := os.Open("/proc/thread-self/net/unix")
		if err != nil {
			return err
		}
		defer file.Close()
		found, err = parseAgents(file, maxUnixFile)
		return err
	})
	return found, err
}

// HasAgent reports whether a packetwalk-node of a namespace has a role, as Agents says.
func HasAgent(ns *netns.Namespace, role string) (bool, error) {
	found, err := Agents(ns)
	return slices.Contains(found, snapshot.Agent{Role: role}), err
}

// parseAgents reads a list of sockets. A longer one than limit is an error, because any agent may be in the rest.
func parseAgents(text io.Reader, limit int64) (found []snapshot.Agent, err error) {
	rest := &io.LimitedReader{R: text, N: limit + 1}
	lines := bufio.NewScanner(rest)
	for lines.Scan() {
		m := agentRole.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		if one := (snapshot.Agent{Role: m[1]}); !slices.Contains(found, one) {
			found = append(found, one)
		}
	}
	if rest.N <= 0 {
		return nil, fmt.Errorf("list of sockets is longer than %d bytes", limit)
	}
	return found, lines.Err()
}
