package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
)

// Images configures the images of pods. The lab process pulls what the machine's image store ("packetwalk image list") lacks.
type Images struct {
	// Preload are images that the lab pulls when it starts, such as nginx:1.27. The start does not wait for them.
	Preload []string `json:"preload,omitzero"`
	// Pull is when images are pulled. Default ifNeeded: when the store lacks the image. With always, the registry is asked each time that a
	// pod needs a tag; the store's image is used if the registry does not answer. With never nothing is pulled.
	Pull Pull `json:"pull,omitempty"`
	// BuiltIn is whether the names of built-in applications (nginx, busybox, whereami, …) mean those, unless an image of the name is loaded.
	// With false they mean what their registries have. Default true.
	BuiltIn *bool `json:"builtIn,omitempty"`
	// PrivateRegistries are registries that may have private addresses, as HOST[:PORT]; http://HOST[:PORT] for one without TLS.
	PrivateRegistries []string `json:"privateRegistries,omitzero"`
}

// Pull says when images are pulled.
type Pull string

// The values of spec.images.pull.
const (
	PullIfNeeded Pull = "ifNeeded"
	PullAlways   Pull = "always"
	PullNever    Pull = "never"
)

// registry is a place of spec.images.privateRegistries.
var registry = regexp.MustCompile(`^(https?://)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:.]+\])(:[1-9][0-9]{0,4})?$`)

// maxPreload is the most images that are preloaded, and private registries.
const maxPreload = 100

func (v *validator) images() {
	i := v.c.Spec.Images
	choice(v, "spec.images.pull", i.Pull, PullIfNeeded, PullAlways, PullNever)
	if i.Pull == PullNever && len(i.Preload) > 0 {
		v.errs.add("spec.images.preload", "leave it out, or write pull: ifNeeded", "nothing is pulled with pull: never")
	}
	v.atMost("spec.images.preload", len(i.Preload))
	v.atMost("spec.images.privateRegistries", len(i.PrivateRegistries))
	seen := map[string]string{}
	for n, ref := range i.Preload {
		at := fmt.Sprintf("spec.images.preload[%d]", n)
		if _, err := name.ParseReference(ref); err != nil {
			v.errs.add(at, "write an image's name, such as nginx:1.27 or ghcr.io/user/app:v1", "%q is no image reference", ref)
		}
		v.unique(at, ref, seen)
	}
	for n, host := range i.PrivateRegistries {
		at := fmt.Sprintf("spec.images.privateRegistries[%d]", n)
		if !isRegistry(host) {
			v.errs.add(at, "write HOST[:PORT], such as registry.example:5000, or http://HOST[:PORT] for one without TLS", "%q is no registry", host)
		}
		v.unique(at, host, seen)
	}
}

// isRegistry reports whether pulls accept s as a registry (pull.ParseRegistry).
func isRegistry(s string) bool {
	m := registry.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	if six, ok := strings.CutPrefix(m[2], "["); ok && !netip.MustParsePrefix("::/0").Contains(parseAddr(strings.TrimSuffix(six, "]"))) {
		return false
	}
	port, err := strconv.ParseUint(cmp.Or(strings.TrimPrefix(m[3], ":"), "443"), 10, 16)
	return err == nil && port > 0
}

// parseAddr returns the zero Addr where s is none.
func parseAddr(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}

func (v *validator) atMost(path string, n int) {
	if n > maxPreload {
		v.errs.add(path, fmt.Sprintf("write at most %d", maxPreload), "%d are too many", n)
	}
}
