package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"packetwalk.dev/internal/base/sudouser"
	"packetwalk.dev/internal/pods/images"
	"packetwalk.dev/internal/pods/source"
)

// parts are what images are made of.
type parts struct {
	distribution string // a folder with what nodes have of Debian
	busybox      string // a folder with Debian's static ones at bin/busybox and bin/bash-static
	applets      []string
	nginx        string // a folder with Debian's nginx
	sources      string // of upstream's images (k8s.io/kubernetes/test/images)
}

// A recipe is one of the suite's images, by its repository's name; Assembly.From is that of one before it.
type recipe struct {
	repository string
	images.Assembly
}

// loadImages makes the suite's images in the machine's store: the lab's registry has them for nodes.
func loadImages(ctx context.Context) error {
	cache, err := sudouser.CacheDir()
	if err != nil {
		return err
	}
	cache = filepath.Join(cache, "packetwalk", "e2e")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return err
	}
	p, err := gather(ctx, cache)
	if err != nil {
		return err
	}
	made, err := p.recipes()
	if err != nil {
		return err
	}
	list, err := output(ctx, filepath.Join(bin, "e2e", "e2e.test"), "-list-images")
	if err != nil {
		return err
	}
	named, err := named(made, list)
	if err != nil {
		return err
	}
	dir, err := images.Dir()
	if err != nil {
		return err
	}
	store, err := images.Open(dir)
	if err != nil {
		return err
	}
	for _, a := range named {
		if _, err := store.Assemble(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// named returns images under all the names that the suite prints.
func named(made []recipe, list string) (all []images.Assembly, err error) {
	names := map[string][]string{}
	for line := range strings.Lines(list) {
		tag, err := name.NewTag(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		if tag.RegistryStr() == "registry.k8s.io" {
			names[tag.RepositoryStr()] = append(names[tag.RepositoryStr()], tag.Name())
		}
	}
	for _, r := range made {
		of := names[r.repository]
		if len(of) == 0 {
			return nil, fmt.Errorf("the suite does not name the image %s, which is made for it", r.repository)
		}
		if r.From != "" {
			r.From = names[r.From][0]
		}
		for _, r.Name = range of {
			all = append(all, r.Assembly)
		}
	}
	return all, nil
}

// gather finds the parts, and fetches packages that are not in the folder cache. They are not installed: a server would start here.
func gather(ctx context.Context, cache string) (p parts, err error) {
	builtIn := source.BuiltIn{Base: filepath.Join("bin", "base"), Roots: source.RootsDir}
	if p.distribution, err = builtIn.Root(ctx); err != nil {
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
	source, err := goList(ctx, "-C", "controlplane/e2e", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return p, fmt.Errorf("find upstream's sources: %w", err)
	}
	p.sources = filepath.Join(strings.TrimSpace(string(source)), "test", "images")
	return p, nil
}

// goList runs the go command as the user who called sudo, whose modules are downloaded.
func goList(ctx context.Context, args ...string) ([]byte, error) {
	caller, err := sudouser.Get()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, "go", args...)
	command.Env = caller.Environment()
	command.SysProcAttr = &syscall.SysProcAttr{Credential: caller.Credential}
	return command.Output()
}

// unpacked returns a folder with the files of Debian packages, without those outside of /bin, /etc and /usr.
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

// distributed is the image that those are made from that have the files of a distribution.
const distributed = "e2e-test-images/ipc-utils"

// recipes follows upstream's Dockerfiles (k8s.io/kubernetes/test/images), with the nodes' files of Debian in place of Alpine and others,
// and Debian's nginx and busybox. pause is the lab's own, which starts every pod. It leaves out what no spec of Conformance runs, unless
// that is made of the same parts.
func (p parts) recipes() ([]recipe, error) {
	var errs []error
	program := func(name string) string { // by a path that has its version: what bin/e2e has is a link
		file, err := filepath.EvalSymlinks(filepath.Join(bin, "e2e", name))
		errs = append(errs, err)
		return file
	}
	plane, err := filepath.EvalSymlinks(filepath.Join(bin, "packetwalk-controlplane"))
	errs = append(errs, err)
	agnhost, err := p.agnhostFiles(program("agnhost"))
	errs = append(errs, err)
	const busybox, host, server = "e2e-test-images/busybox", "e2e-test-images/agnhost", "e2e-test-images/sample-apiserver"
	withPlane := images.Layer{Files: []images.File{{Path: controlPlane, Source: plane}}}
	of := func(files ...images.File) []images.Layer { return []images.Layer{{Files: files}} }
	made := []recipe{
		{distributed, images.Assembly{Layers: []images.Layer{{Dir: p.distribution}}, Cmd: []string{"bash"}}},
		{"e2e-test-images/jessie-dnsutils", images.Assembly{From: distributed, Cmd: []string{"bash"}}},
		{"build-image/distroless-iptables", images.Assembly{From: distributed, Cmd: []string{"bash"}}},
		{"e2e-test-images/nginx", p.nginxImage()},
		{busybox, images.Assembly{Layers: of(p.busyboxFiles()...), Cmd: []string{"sh"}}},
		{"e2e-test-images/nonroot", images.Assembly{From: busybox, Cmd: []string{"sh"}, User: "1234"}},
		{"e2e-test-images/nonewprivs", images.Assembly{From: busybox, Cmd: []string{"nnp"},
			Layers: of(images.File{Path: "/usr/local/bin/nnp", Source: program("nonewprivs"), Mode: 0o6755})}},
		{host, images.Assembly{From: distributed, Layers: []images.Layer{withPlane, {Files: agnhost}}, Entrypoint: []string{"/agnhost"},
			Cmd: []string{"pause"}}},
		{server, images.Assembly{Layers: of(images.File{Path: "/sample-apiserver", Source: program("sample-apiserver")}),
			Entrypoint: []string{"/sample-apiserver"}}},
		{"e2e-test-images/regression-issue-74839", images.Assembly{Entrypoint: []string{"/regression-issue-74839"},
			Layers: of(images.File{Path: "/regression-issue-74839", Source: program("regression-issue-74839")})}},
		{"etcd", images.Assembly{From: distributed, Entrypoint: []string{"/usr/local/bin/etcd"},
			Layers: append([]images.Layer{withPlane}, of(images.File{Path: "/usr/local/bin/etcd", Link: controlPlane})...)}},
	}
	for _, name := range []string{"kitten", "nautilus"} {
		html := filepath.Join(p.sources, name, "html")
		made = append(made, recipe{"e2e-test-images/" + name, images.Assembly{From: host, Entrypoint: []string{"/agnhost"},
			Cmd: []string{"test-webserver"},
			Layers: of(images.File{Path: "/" + name + ".jpg", Source: filepath.Join(html, name+".jpg"), Mode: 0o644},
				images.File{Path: "/data.json", Source: filepath.Join(html, "data.json"), Mode: 0o644})}})
	}
	return made, errors.Join(errs...)
}

// controlPlane is where images have the control plane's program, which knows by a link's name what it is.
const controlPlane = "/usr/local/bin/packetwalk-controlplane"

// agnhostFiles returns the files of the image that most specs run. It lacks iperf.
func (p parts) agnhostFiles(program string) ([]images.File, error) {
	files := []images.File{
		{Path: "/agnhost", Source: program}, {Path: "/agnhost-2", Link: "agnhost"}, {Path: "/uploads/"}, {Path: "/coredns", Link: controlPlane},
	}
	for _, name := range []string{"localhost.crt", "localhost.key"} {
		files = append(files, images.File{Path: "/" + name, Source: filepath.Join(p.sources, "agnhost", "porter", name), Mode: 0o644})
	}
	for _, more := range [][2]string{
		{"/etc/passwd", "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"},
		{"/etc/group", "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n"},
	} {
		text, err := os.ReadFile(filepath.Join(p.distribution, more[0]))
		if err != nil {
			return nil, err
		}
		files = append(files, images.File{Path: more[0], Text: string(text) + more[1]})
	}
	return files, nil
}

// busyboxFiles returns the files of the image, as busybox's own (https://github.com/docker-library/busybox) has them. The shell is bash,
// because that of Debian's busybox drops variables whose names are not those of a shell's.
func (p parts) busyboxFiles() []images.File {
	files := []images.File{
		{Path: "/bin/"}, {Path: "/bin/busybox", Source: filepath.Join(p.busybox, "bin", "busybox")},
		{Path: "/bin/sh", Source: filepath.Join(p.busybox, "bin", "bash-static")},
		{Path: "/etc/"}, {Path: "/etc/group", Text: "root:x:0:\nnogroup:x:65534:\n"},
		{Path: "/etc/passwd", Text: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/home:/bin/false\n"},
		{Path: "/home/"}, {Path: "/root/", Mode: 0o700}, {Path: "/tmp/", Mode: 0o1777}, {Path: "/usr/"},
		{Path: "/usr/local/"}, {Path: "/usr/local/bin/"}, {Path: "/usr/sbin/"}, {Path: "/var/"},
		{Path: "/var/spool/"}, {Path: "/var/www/"},
	}
	for _, a := range p.applets {
		if a != "busybox" && a != "sh" {
			files = append(files, images.File{Path: "/bin/" + a, Link: "busybox"})
		}
	}
	return files
}

// nginxImage returns Debian's nginx with the site and the log of nginx's own image
// (https://github.com/docker-library/docs/tree/master/nginx).
func (p parts) nginxImage() images.Assembly {
	const site = "server {\n\tlisten 80;\n\troot /usr/share/nginx/html;\n}\n"
	return images.Assembly{From: distributed, Entrypoint: []string{"nginx"}, Cmd: []string{"-g", "daemon off;"},
		Layers: []images.Layer{{Dir: p.nginx}, {Files: []images.File{
			{Path: "/etc/nginx/conf.d/default.conf", Text: site}, {Path: "/var/lib/nginx/"}, {Path: "/var/log/nginx/"},
			{Path: "/var/log/nginx/access.log", Link: "/dev/stdout"}, {Path: "/var/log/nginx/error.log", Link: "/dev/stderr"},
		}}}}
}
