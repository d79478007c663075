package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"
)

// A web server of static files: nginx and httpd as their images configure them.
type webServer struct {
	root   string // its documents
	server string // Server header field
	log    func(w io.Writer, r *request, resp *response, now time.Time)
}

const nginxVersion = "nginx/1.27.5"

// nginx is the image's nginx: /usr/share/nginx/html on port 80, access log on standard output, in the image's "main" format: combined with
// X-Forwarded-For at the end.
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

// signalNginx is nginx -s: the container's first process is the server, or passes the signal on to it.
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

// httpd is Apache's, as its image has it: /usr/local/apache2/htdocs on port 80, common log format.
func httpd(ctx context.Context, p *Process) int {
	w := webServer{root: "/usr/local/apache2/htdocs", server: "Apache/2.4.63 (Unix)", log: func(w io.Writer, r *request, resp *response, now time.Time) {
		line := combined(r, resp, now)
		referer := strings.LastIndex(line[:strings.LastIndex(line, ` "`)], ` "`)
		fmt.Fprintln(w, line[:referer])
	}}
	return w.run(ctx, p, 80)
}

func (s *webServer) run(ctx context.Context, p *Process, port int) int {
	return listenHTTP(ctx, p, port, func(r *request) response {
		resp := s.answer(r)
		resp.header = append(header{{"Server", s.server}}, resp.header...)
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
	if resp.status == 301 {
		resp.header = header{{"Location", "http://" + r.host + r.path + "/"}}
	}
	if resp.status >= 300 {
		failure := s.failure(resp.status)
		failure.header = append(failure.header, resp.header.only("Location")...)
		return failure
	}
	return resp
}

func (h header) only(name string) (kept header) {
	for _, f := range h {
		if strings.EqualFold(f.name, name) {
			kept = append(kept, f)
		}
	}
	return kept
}

func (s *webServer) failure(status int) response {
	title := fmt.Sprintf("%d %s", status, reasons[status])
	resp := content("text/html", fmt.Appendf(nil, "<html>\r\n<head><title>%s</title></head>\r\n<body>\r\n<center><h1>%s</h1></center>\r\n<hr><center>%s</center>\r\n</body>\r\n</html>\r\n",
		title, title, s.server))
	resp.status = status
	return resp
}

const maxFile = 64 << 20

// serveFile is a file below root; symbolic links are followed, dots in the path do not leave it.
func serveFile(root, name string) response {
	full := path.Join(root, path.Clean("/"+name))
	info, err := os.Stat(full)
	if err == nil && info.IsDir() {
		return response{status: 301}
	}
	if err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile) {
		err = fs.ErrPermission
	}
	var body []byte
	if err == nil {
		body, err = os.ReadFile(full)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ENAMETOOLONG):
		return text(404, "404 page not found\n")
	case err != nil:
		return text(403, "403 Forbidden\n")
	}
	kind := mediaType(path.Ext(full))
	return response{header: header{{"Content-Type", kind}, {"Last-Modified", info.ModTime().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT")}}, body: body}
}

// mediaTypes are the usual ones; package mime would read the machine's tables.
var mediaTypes = map[string]string{
	".html": "text/html", ".htm": "text/html", ".css": "text/css", ".js": "application/javascript", ".json": "application/json", ".txt": "text/plain",
	".xml": "text/xml", ".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif", ".svg": "image/svg+xml", ".ico": "image/x-icon",
}

func mediaType(ext string) string {
	if kind, ok := mediaTypes[strings.ToLower(ext)]; ok {
		return kind
	}
	return "application/octet-stream"
}
