package kubelet

import (
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/beneath"
	"packetwalk.dev/internal/pods/nodeapi"
)

// logDir is what of the node's own tree is served as its logs, as by upstream's kubelet (pkg/kubelet/kubelet.go, Start).
const logDir = "/var/log"

// nodeLogs serves the node's logs: what pods with hostPath write there.
func (k *Kubelet) nodeLogs() http.Handler {
	files := http.StripPrefix(nodeapi.NodeLogsAt, http.FileServer(logFiles{k.hostRoot()}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		files.ServeHTTP(w, r)
	})
}

// logFiles are the files and directories in logDir of a tree that containers change: links lead within the tree, and what else is there,
// such as pipes, which would be waited for, is not opened.
type logFiles struct{ root string }

func (l logFiles) Open(name string) (http.File, error) {
	f, err := beneath.InRoot(l.root, logDir+name, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		err = fs.ErrPermission
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return logFile{f}, nil
}

type logFile struct{ *os.File }

// listMost is how many names of a directory are listed.
const listMost = 10_000

// ReadDir gives a directory's names, up to listMost of them, whatever number is asked for: containers can make millions.
func (f logFile) ReadDir(int) ([]fs.DirEntry, error) {
	list, err := f.File.ReadDir(listMost)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return list, err
}
