package lab

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// inotifyInstances is the file of how many instances of inotify a user may have (man 7 inotify). By default that is 128; kubelet has 6 and
// containerd 2, and all that a machine's labs have are root's.
const inotifyInstances = "/proc/sys/fs/inotify/max_user_instances"

// enoughInstances are for 500 nodes.
const enoughInstances = 4096

// raiseInotify has the machine allow as many instances as nodes need, and tells what the setting was; 0 where it was enough.
func raiseInotify(file string) (was int, err error) {
	text, err := os.ReadFile(file)
	if err == nil {
		was, err = strconv.Atoi(string(bytes.TrimSpace(text)))
	}
	if err != nil || was >= enoughInstances {
		return 0, err
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(enoughInstances)), 0); err != nil {
		return was, fmt.Errorf("%w; more than some 15 nodes need 'sysctl fs.inotify.max_user_instances=%d' on this machine", err, enoughInstances)
	}
	return was, nil
}
