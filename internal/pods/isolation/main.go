package isolation

import (
	"cmp"
	"fmt"
	"os"
)

// The stages by which packetwalk-app becomes a program apart, its first argument.
const (
	stageHost     = "run"         // becomes a command on a host. A HostCommand as JSON
	stageServer   = "confined"    // becomes a server of a host. FILE
	stageNodeRun  = "node-run"    // beside a node: runs one of its programs there. PIDFILE PROGRAM ARG...
	stageNodeExec = "node-exec"   // beside a node: runs a command there. [COMMAND ARG...]
	stageBecome   = "node-become" // on a node, on its way to be that program or command. PROGRAM ARG...
)

// Main runs the stage that packetwalk-app's arguments name. It reports false for other arguments. main must have locked the main thread,
// whose namespaces change.
func Main(args []string) (status int, ok bool) {
	if len(args) < 2 || len(args) == 2 && args[1] != stageNodeExec {
		return 0, false
	}
	var err error
	switch stage, rest := args[1], args[2:]; {
	case stage == stageHost && len(rest) == 1:
		status, err = execOnHost(rest[0])
	case stage == stageServer && len(rest) == 1:
		err = execServer(rest[0])
	case stage == stageNodeRun && len(rest) > 1:
		if err = runPrivately(); err == nil {
			status, err = runOnNode(rest[0], rest[1:])
		}
	case stage == stageNodeExec:
		if err = runPrivately(); err == nil {
			status, err = execOnNode(rest)
		}
	case stage == stageBecome:
		status, err = statusNoExec, execProgram(rest)
	default:
		return 0, false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cmp.Or(status, statusFailed), true
	}
	return status, true
}
