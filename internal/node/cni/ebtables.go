package cni

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/node/cni/ebrules"
)

// ebRule is a rule as ebtables' own command line has it, chain first.
type ebRule = ebrules.Rule

// restoreInput returns ebtables-restore's input that appends (A) or deletes (D) rules.
func restoreInput(op byte, rules []ebRule) []byte {
	var b bytes.Buffer
	for len(rules) > 0 {
		table := rules[0].Table
		fmt.Fprintf(&b, "*%s\n", table)
		for len(rules) > 0 && rules[0].Table == table {
			fmt.Fprintf(&b, "-%c %s\n", op, rules[0].Text)
			rules = rules[1:]
		}
		b.WriteString("COMMIT\n")
	}
	return b.Bytes()
}

// canonical returns a rule in the one form that rules are compared in: saving leaves out arpreply's default target, and versions differ in
// how they write MAC addresses and "unicast".
func canonical(rule ebRule) ebRule {
	words := strings.Fields(rule.Text)
	for i, w := range words {
		if strings.Count(w, ":") == 5 {
			words[i] = canonicalMAC(w)
		}
		if strings.EqualFold(w, "unicast") {
			words[i] = "Unicast"
		}
	}
	return ebRule{Table: rule.Table, Text: strings.Replace(strings.Join(words, " "), " --arpreply-target DROP", "", 1)}
}

func canonicalMAC(s string) string {
	parts := strings.Split(strings.ToLower(s), ":")
	for i, p := range parts {
		if len(p) == 1 {
			parts[i] = "0" + p
		}
	}
	return strings.Join(parts, ":")
}

// savedRules returns the rules in ebtables-save's output, canonical.
func savedRules(output []byte) map[ebRule]int {
	rules, table := map[ebRule]int{}, ""
	for line := range strings.Lines(string(output)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "*"); ok {
			table = name
		}
		if rule, ok := strings.CutPrefix(line, "-A "); ok {
			rules[canonical(ebRule{Table: table, Text: rule})]++
		}
	}
	return rules
}

// programLimit is how long one run of ebtables may take: much less than runtimes give the plugin. A test changes it.
var programLimit = 10 * time.Second

// ebtables runs the programs of that name.
type ebtables struct {
	locks
	// held are the locks of what is worked on. The programs inherit them, so that a plugin killed while one runs does not let the next
	// plugin in before the program is through.
	held []*os.File
}

func (e ebtables) run(input []byte, what string, args ...string) ([]byte, error) {
	path, err := findProgram("ebtables-nft-"+what, "ebtables-"+what)
	if err != nil {
		return nil, coded(types.ErrPluginNotAvailable, err)
	}
	c := program.Command{Path: path, Args: args, Stdin: input, Limit: programLimit, Files: e.held}
	if !strings.Contains(path, "-nft-") { // those of nft tell by the rules' generation that others were there, and do it again
		lock, err := e.acquire(ebtablesLock, unix.F_WRLCK, lockLimit)
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", path, err)
		}
		defer lock.Close()
		c.Files = append(slices.Clone(e.held), lock)
		c.Started = func(int) { lock.Close() } // it is the program's: a plugin that stands still does not keep it
	}
	return c.Output(context.Background()) // skel's commands have no context: the limit is theirs
}

// findProgram looks in PATH and, since runtimes start plugins with any PATH or none, where system programs are.
func findProgram(names ...string) (string, error) {
	for _, name := range names {
		for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/usr/local/sbin"} {
			if st, err := os.Stat(dir + "/" + name); err == nil && st.Mode()&0o111 != 0 {
				return dir + "/" + name, nil
			}
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		} else if !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find %s: %w", name, err)
		}
	}
	return "", fmt.Errorf("find %s: no such program; install the package ebtables (Debian: iptables and ebtables)", names[len(names)-1])
}

func (e ebtables) add(rules []ebRule) error {
	if len(rules) == 0 {
		return nil
	}
	_, err := e.run(restoreInput('A', rules), "restore", "--noflush")
	return wrap("add ebtables rules", err)
}

// dedup makes a chain hold these rules and nothing else: naming a chain in a restore empties it. The jump to it is the first of them and is
// made when it is missing.
func (e ebtables) dedup(chain string, rules []ebRule) error {
	missing, err := e.missing(rules[:1])
	if err != nil {
		return err
	}
	input := "*filter\n:" + chain + " ACCEPT\n" + strings.TrimPrefix(string(restoreInput('A', append(missing, rules[1:]...))),
		"*filter\n")
	_, err = e.run([]byte(input), "restore", "--noflush")
	return wrap("write ebtables chain "+chain, err)
}

// removeDedup takes the chain and the jumps to it away. They are not there when another did.
func (e ebtables) removeDedup(chain string, jump ebRule) error {
	if err := e.delete([]ebRule{jump}); err != nil {
		return err
	}
	out, err := e.run(nil, "save")
	if err != nil || !bytes.Contains(out, []byte("\n:"+chain+" ")) {
		return err
	}
	_, err = e.run([]byte("*filter\n:"+chain+" ACCEPT\n-X "+chain+"\nCOMMIT\n"), "restore", "--noflush")
	return wrap("delete ebtables chain "+chain, err)
}

// currentRules reads the rules that exist.
func (e ebtables) currentRules() (map[ebRule]int, error) {
	out, err := e.run(nil, "save")
	if err != nil {
		return nil, fmt.Errorf("list ebtables rules: %w", err)
	}
	return savedRules(out), nil
}

// missing returns the rules that are not there, in their order.
func (e ebtables) missing(rules []ebRule) ([]ebRule, error) {
	saved, err := e.currentRules()
	if err != nil {
		return nil, err
	}
	var missing []ebRule
	for _, r := range rules {
		if saved[canonical(r)] == 0 {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// delete removes the rules that are there, every copy; those that are gone are no error. It tries the common case, all there once, first.
func (e ebtables) delete(rules []ebRule) error {
	if _, err := e.run(restoreInput('D', rules), "restore", "--noflush"); err == nil {
		return nil
	}
	saved, err := e.currentRules()
	if err != nil {
		return err
	}
	var there []ebRule
	for _, r := range rules {
		for range saved[canonical(r)] {
			there = append(there, r)
		}
	}
	if len(there) == 0 {
		return nil
	}
	_, err = e.run(restoreInput('D', there), "restore", "--noflush")
	return wrap("delete ebtables rules", err)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}
