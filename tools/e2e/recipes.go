package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"packetwalk.dev/internal/base/program"
	"packetwalk.dev/internal/pods/distribution"
)

// parts are what images are made of.
type parts struct {
	distribution string // a folder with this machine's packages
	busybox      string // a folder with Debian's static ones at bin/busybox and bin/bash-static
	applets      []string
	nginx        string // a folder with Debian's nginx
	sources      string // of upstream's images (k8s.io/kubernetes/test/images)
}

// suiteRecipes are those of the suite's images that are made here, under the names that the suite prints.
func suiteRecipes(ctx context.Context, cache string) (map[name.Tag]recipe, error) {
	p, err := gather(ctx, cache)
	if err != nil {
		return nil, err
	}
	made, err := p.recipes()
	if err != nil {
		return nil, err
	}
	list, err := output(ctx, filepath.Join(bin, "e2e", "e2e.test"), "-list-images")
	if err != nil {
		return nil, err
	}
	wanted := map[name.Tag]recipe{}
	for line := range strings.Lines(list) {
		tag, err := name.NewTag(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		if r, ok := made[tag.RepositoryStr()]; ok && tag.RegistryStr() == "registry.k8s.io" {
			wanted[tag] = r
		}
	}
	if len(wanted) < len(made) {
		return nil, fmt.Errorf("the suite names %d of the %d images that are made for it", len(wanted), len(made))
	}
	return wanted, nil
}

// gather finds the parts, and fetches packages that are not in the folder cache. They are not installed: a server would start here.
func gather(ctx context.Context, cache string) (p parts, err error) {
	if p.distribution, err = packages(ctx, cache); err != nil {
		return p, err
	}
	if p.busybox, err = unpacked(ctx, cache, "busybox-static", "bash-static"); err != nil {
		return p, err
	}
	list, err := output(ctx, filepath.Join(p.busybox, "bin", "busybox"), "--list")
	if err != nil {
		return p, err
	}
	p.applets = strings.Fields(list)
	if p.nginx, err = unpacked(ctx, cache, "nginx", "nginx-common"); err != nil {
		return p, err
	}
	source, err := exec.CommandContext(ctx, "go", "-C", "controlplane/e2e", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return p, fmt.Errorf("find upstream's sources: %w", err)
	}
	p.sources = filepath.Join(strings.TrimSpace(string(source)), "test", "images")
	return p, nil
}

// packages is a folder with the files of this machine's Debian packages.
func packages(ctx context.Context, cache string) (string, error) {
	s, err := distribution.Select(ctx, "/")
	if err != nil {
		return "", err
	}
	folder := filepath.Join(cache, s.Key())
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	work, err := os.MkdirTemp(cache, "packages-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	root := filepath.Join(work, "root")
	if _, err := s.Assemble(ctx, root); err != nil {
		return "", err
	}
	return folder, os.Rename(root, folder)
}

// unpacked is a folder with the files of Debian packages, without those outside of /bin, /etc and /usr.
func unpacked(ctx context.Context, cache string, packages ...string) (string, error) {
	folder := filepath.Join(cache, strings.Join(packages, "+"))
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	work, err := os.MkdirTemp(cache, "packages-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	fetch := exec.CommandContext(ctx, "apt-get", append([]string{"download", "-q"}, packages...)...)
	fetch.Dir = work
	if out, err := fetch.CombinedOutput(); err != nil {
		return "", fmt.Errorf("apt-get download %s: %w; apt-get update may help\n%s", strings.Join(packages, " "), err, out)
	}
	archives, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(archives) != len(packages) {
		return "", fmt.Errorf("apt-get download made %d files: %w", len(archives), err)
	}
	root := filepath.Join(work, "root")
	for _, a := range archives {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", a, root).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack %s: %w\n%s", filepath.Base(a), err, out)
		}
	}
	// In the layer below /lib is a link, which a folder would replace.
	if err := os.RemoveAll(filepath.Join(root, "lib")); err != nil {
		return "", err
	}
	return folder, errors.Join(os.Chmod(root, 0o755), os.Rename(root, folder))
}

// path is the images'.
const path = "PATH=" + program.Path

// recipes are by the repositories' names. They are what upstream's Dockerfiles say (k8s.io/kubernetes/test/images), with a distribution of
// this machine's packages in place of Alpine and others, and Debian's nginx and busybox. pause is agnhost's. What no spec of Conformance
// runs is left out where it is not made of the same parts.
func (p parts) recipes() (map[string]recipe, error) {
	agnhost, err := p.agnhost()
	if err != nil {
		return nil, err
	}
	busybox := recipe{[]layer{{entries: p.busyboxFiles()}}, v1.Config{Cmd: []string{"sh"}, Env: []string{path}}}
	nonroot := busybox
	nonroot.config.User = "1234"
	base := recipe{[]layer{{folder: p.distribution}}, v1.Config{Cmd: []string{"bash"}, Env: []string{path}}}
	pause := agnhost
	pause.config.Entrypoint = []string{"/agnhost", "pause"}
	pause.config.Cmd = nil
	nnp, err := suiteProgram("nonewprivs")
	if err != nil {
		return nil, err
	}
	made := map[string]recipe{
		"e2e-test-images/agnhost":         agnhost,
		"e2e-test-images/busybox":         busybox,
		"e2e-test-images/ipc-utils":       base,
		"e2e-test-images/jessie-dnsutils": base,
		"e2e-test-images/nginx":           p.nginxImage(),
		"e2e-test-images/nonewprivs": {append(busybox.layers[:1:1], layer{entries: []entry{
			{name: "usr/local/bin/nnp", source: nnp, mode: 0o6755},
		}}), v1.Config{Cmd: []string{"nnp"}, Env: []string{path}}},
		"e2e-test-images/nonroot":         nonroot,
		"build-image/distroless-iptables": base,
		"pause":                           pause,
	}
	for _, name := range []string{"kitten", "nautilus"} {
		html := filepath.Join(p.sources, name, "html")
		r := agnhost
		r.layers = append(r.layers[:len(r.layers):len(r.layers)], layer{entries: []entry{
			{name: name + ".jpg", source: filepath.Join(html, name+".jpg"), mode: 0o644},
			{name: "data.json", source: filepath.Join(html, "data.json"), mode: 0o644},
		}})
		r.config.Cmd = []string{"test-webserver"}
		made["e2e-test-images/"+name] = r
	}
	return made, p.servers(made)
}

// suiteProgram is a program of the suite, by a path that has its version: what bin/e2e has is a link.
func suiteProgram(name string) (string, error) {
	return filepath.EvalSymlinks(filepath.Join(bin, "e2e", name))
}

// agnhost is the image that most specs run. It lacks iperf.
func (p parts) agnhost() (recipe, error) {
	file, err := suiteProgram("agnhost")
	if err != nil {
		return recipe{}, err
	}
	files := []entry{
		{name: "agnhost", source: file, mode: 0o755}, {name: "agnhost-2", target: "agnhost"}, {name: "uploads/", mode: 0o755},
		{name: "coredns", target: controlPlane},
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		files = append(files, entry{name: name, source: filepath.Join(p.sources, "agnhost", "porter", name), mode: 0o644})
	}
	for _, more := range [][2]string{
		{"etc/passwd", "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"},
		{"etc/group", "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"},
	} {
		text, err := os.ReadFile(filepath.Join(p.distribution, more[0]))
		if err != nil {
			return recipe{}, err
		}
		files = append(files, entry{name: more[0], text: string(text) + more[1], mode: 0o644})
	}
	return p.withControlPlane(files, v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{path}})
}

// controlPlane is where images have the control plane's program, which knows by a link's name what it is.
const controlPlane = "/usr/local/bin/packetwalk-controlplane"

func (p parts) withControlPlane(files []entry, config v1.Config) (recipe, error) {
	file, err := filepath.EvalSymlinks(filepath.Join(bin, "packetwalk-controlplane"))
	return recipe{[]layer{
		{folder: p.distribution}, {entries: []entry{{name: controlPlane[1:], source: file, mode: 0o755}}}, {entries: files},
	}, config}, err
}

// servers adds the images of upstream's servers.
func (p parts) servers(made map[string]recipe) (err error) {
	for _, name := range []string{"sample-apiserver", "regression-issue-74839"} {
		file, err := suiteProgram(name)
		if err != nil {
			return err
		}
		made["e2e-test-images/"+name] = recipe{[]layer{{entries: []entry{{name: name, source: file, mode: 0o755}}}},
			v1.Config{Entrypoint: []string{"/" + name}, Env: []string{path}}}
	}
	made["etcd"], err = p.withControlPlane([]entry{{name: "usr/local/bin/etcd", target: controlPlane}},
		v1.Config{Entrypoint: []string{"/usr/local/bin/etcd"}, Env: []string{path}})
	return err
}

// busyboxFiles are those of the image, as busybox's own (https://github.com/docker-library/busybox) has them. The shell is bash, because
// that of Debian's busybox drops variables whose names are not those of a shell's.
func (p parts) busyboxFiles() []entry {
	files := []entry{
		{name: "bin/", mode: 0o755}, {name: "bin/busybox", source: filepath.Join(p.busybox, "bin", "busybox"), mode: 0o755},
		{name: "bin/sh", source: filepath.Join(p.busybox, "bin", "bash-static"), mode: 0o755},
		{name: "etc/", mode: 0o755}, {name: "etc/group", text: "root:x:0:\nnogroup:x:65534:\n", mode: 0o644},
		{name: "etc/passwd", text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n", mode: 0o644},
		{name: "home/", mode: 0o755}, {name: "root/", mode: 0o700}, {name: "tmp/", mode: 0o1777}, {name: "usr/", mode: 0o755},
		{name: "usr/local/", mode: 0o755}, {name: "usr/local/bin/", mode: 0o755}, {name: "usr/sbin/", mode: 0o755}, {name: "var/", mode: 0o755},
		{name: "var/spool/", mode: 0o755}, {name: "var/www/", mode: 0o755},
	}
	for _, a := range p.applets {
		if a != "busybox" && a != "sh" {
			files = append(files, entry{name: "bin/" + a, target: "busybox"})
		}
	}
	return files
}

// nginxImage is Debian's nginx with the site and the log of nginx's own image (https://github.com/docker-library/docs/tree/master/nginx).
func (p parts) nginxImage() recipe {
	const site = "server {\n\tlisten 80;\n\troot /usr/share/nginx/html;\n}\n"
	return recipe{[]layer{{folder: p.distribution}, {folder: p.nginx}, {entries: []entry{
		{name: "etc/nginx/conf.d/default.conf", text: site, mode: 0o644},
		{name: "var/lib/nginx/", mode: 0o755}, {name: "var/log/nginx/", mode: 0o755},
		{name: "var/log/nginx/access.log", target: "/dev/stdout"}, {name: "var/log/nginx/error.log", target: "/dev/stderr"},
	}}}, v1.Config{Entrypoint: []string{"nginx"}, Cmd: []string{"-g", "daemon off;"}, Env: []string{path}}}
}
