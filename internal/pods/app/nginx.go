package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"packetwalk.dev/internal/pods/safepath"
)

// A web server of static files: nginx and httpd as their images configure them.
type webServer struct {
	root   string // its documents
	server string // Server header field
	log    func(w io.Writer, r *request, resp *response, now time.Time)
}

const nginxVersion = "nginx/1.27.5"

// nginx returns the image's nginx: /usr/share/nginx/html on port 80, access log on standard output, in the image's "main" format: combined
// with X-Forwarded-For at the end.
func nginx(ctx context.Context, p *Process) int {
	if len(p.Args) > 1 && (p.Args[1] == "-v" || p.Args[1] == "-V") {
		fmt.Fprintf(p.Stderr, "nginx version: %s\n", nginxVersion)
		return 0
	}
	if len(p.Args) > 1 && p.Args[1] == "-t" {
		fmt.Fprint(p.Stderr, "nginx: the configuration file /etc/nginx/nginx.conf syntax is ok\n"+
			"nginx: configuration file /etc/nginx/nginx.conf test is successful\n")
		return 0
	}
	if len(p.Args) > 2 && p.Args[1] == "-s" {
		return signalNginx(p, p.Args[2])
	}
	w := webServer{root: "/usr/share/nginx/html", server: nginxVersion, log: logNginx}
	return w.run(ctx, p, 80)
}

// signalNginx does what nginx -s does: the container's first process is the server.
func signalNginx(p *Process, what string) int {
	switch what {
	case "reload", "reopen": // there is no configuration to read again
		return 0
	case "stop", "quit":
		if err := syscall.Kill(1, syscall.SIGTERM); err != nil {
			fmt.Fprintf(p.Stderr, "nginx: kill(1, 15) failed: %v\n", err)
			return 1
		}
		return 0
	}
	fmt.Fprintf(p.Stderr, "nginx: invalid option: \"-s %s\"\n", what)
	return 1
}

func logNginx(w io.Writer, r *request, resp *response, now time.Time) {
	fmt.Fprintf(w, "%s \"%s\"\n", combined(r, resp, now), orDash(r.forwardedFor()))
}

// httpd serves as Apache's image does: /usr/local/apache2/htdocs on port 80, common log format.
func httpd(ctx context.Context, p *Process) int {
	w := webServer{root: "/usr/local/apache2/htdocs", server: "Apache/2.4.63 (Unix)",
		log: func(w io.Writer, r *request, resp *response, now time.Time) {
			line := combined(r, resp, now)
			referer := strings.LastIndex(line[:strings.LastIndex(line, ` "`)], ` "`)
			fmt.Fprintln(w, line[:referer])
		}}
	return w.run(ctx, p, 80)
}

func (s *webServer) run(ctx context.Context, p *Process, port int) int {
	return listenHTTP(ctx, p, port, func(r *request) response {
		resp := s.answer(r)
		resp.header["Server"] = s.server
		s.log(p.Stdout, r, &resp, time.Now())
		return resp
	})
}

func (s *webServer) answer(r *request) response {
	if r.method != "GET" && r.method != "HEAD" {
		return s.failure(405)
	}
	file := r.path
	if strings.HasSuffix(file, "/") {
		file += "index.html"
	}
	resp := serveFile(s.root, file)
	if resp.file != nil {
		return resp
	}
	failure := s.failure(resp.status)
	if resp.status == 301 {
		failure.header["Location"] = "http://" + r.host + (&url.URL{Path: r.path}).EscapedPath() + "/"
	}
	return failure
}

func (s *webServer) failure(status int) response {
	title := fmt.Sprintf("%d %s", status, http.StatusText(status))
	if status == http.StatusMethodNotAllowed {
		title = "405 Not Allowed"
	}
	resp := content("text/html", fmt.Appendf(nil,
		"<html>\r\n<head><title>%s</title></head>\r\n<body>\r\n<center><h1>%s</h1></center>\r\n<hr><center>%s</center>\r\n</body>\r\n</html>\r\n",
		title, title, s.server))
	resp.status = status
	return resp
}

// serveFile returns a file below root; symbolic links are followed, dots in the path do not leave it.
func serveFile(root, name string) response {
	file, info, err := openServed(path.Join(root, path.Clean("/"+name)))
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return text(404, "404 page not found\n")
	case err != nil:
		return text(403, "403 Forbidden\n")
	case info.IsDir():
		file.Close()
		return response{status: 301}
	}
	return response{file: file, size: info.Size(), header: map[string]string{
		"Content-Type": mediaType(path.Ext(name)), "Last-Modified": info.ModTime().UTC().Format(http.TimeFormat),
	}}
}

// openServed opens a regular file or a directory. This process has more open than the container is to see, so that links of /proc are not
// followed.
func openServed(full string) (file *os.File, info fs.FileInfo, err error) {
	file, err = safepath.InRoot("/", full, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, nil, err
	}
	if info, err = file.Stat(); err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = fs.ErrPermission
	}
	if err != nil {
		file.Close()
		return nil, nil, err
	}
	return file, info, nil
}

// mediaTypes are the usual ones; package mime would read the machine's tables.
var mediaTypes = map[string]string{
	".html": "text/html", ".htm": "text/html", ".css": "text/css", ".js": "application/javascript", ".json": "application/json",
	".txt": "text/plain",
	".xml": "text/xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".svg": "image/svg+xml",
	".ico": "image/x-icon",
}

func mediaType(ext string) string {
	if kind, ok := mediaTypes[strings.ToLower(ext)]; ok {
		return kind
	}
	return "application/octet-stream"
}
