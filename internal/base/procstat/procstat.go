// Package procstat reads /proc/PID/stat (proc_pid_stat(5)), and tells processes that have ended from those that may not be looked at.
package procstat

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Ended reports whether an error from a file below /proc/PID says that the process has ended (proc(5)). A process that may not be looked at
// has not.
func Ended(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) }

// Zombie is the state of a process that has ended and whose parent has not waited for it.
const Zombie = 'Z'

// Tick is the unit of times: USER_HZ is 100 a second on every Linux architecture that Go supports.
const Tick = 10 * time.Millisecond

// Stat is a part of what the file says.
type Stat struct {
	State   byte          // 'R', 'S', Zombie, …
	Session int           // the session's leader
	CPU     time.Duration // used in user and kernel mode, with the children that the process waited for
	Start   uint64        // in ticks since boot
}

// Read reads the file of a process, whose directory is /proc/PID.
func Read(dir string) (Stat, error) {
	path := filepath.Join(dir, "stat")
	text, err := os.ReadFile(path)
	if err != nil {
		return Stat{}, err
	}
	s, ok := Parse(text)
	if !ok {
		return Stat{}, fmt.Errorf("%s: unknown form", path)
	}
	return s, nil
}

// Parse parses the file's text, and reports whether it has the form. The second field, the process's name in parentheses, may contain
// spaces, parentheses and line breaks, so the last parenthesis ends it.
func Parse(text []byte) (Stat, bool) {
	end := bytes.LastIndexByte(text, ')')
	if end < 0 {
		return Stat{}, false
	}
	fields := strings.Fields(string(text[end+1:])) // from field 3 on
	if len(fields) < 20 || len(fields[0]) != 1 {
		return Stat{}, false
	}
	s := Stat{State: fields[0][0]}
	session, err := strconv.Atoi(fields[6-3])
	if err != nil {
		return Stat{}, false
	}
	s.Session = session
	for _, field := range fields[14-3 : 18-3] { // utime, stime, cutime, cstime
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return Stat{}, false
		}
		s.CPU += time.Duration(n) * Tick
	}
	s.Start, err = strconv.ParseUint(fields[22-3], 10, 64)
	return s, err == nil
}
