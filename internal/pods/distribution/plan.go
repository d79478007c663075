package distribution

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"path"
	"slices"
	"strings"
)

// closure chooses the packages of a part and all that these need. What is not installed is missing.
func (part Part) closure(all []debian) (chosen []debian, missing []string) {
	byName, providers := map[string]debian{}, map[string][]string{}
	var queue []string
	for _, p := range all {
		byName[p.name] = p
		for _, name := range p.provides {
			providers[name] = append(providers[name], p.name)
		}
		if p.essential && part.essential {
			queue = append(queue, p.name)
		}
	}
	for _, name := range part.wanted {
		if _, ok := byName[name]; ok {
			queue = append(queue, name)
		} else {
			missing = append(missing, name)
		}
	}
	taken := map[string]bool{}
	for ; len(queue) > 0; queue = queue[1:] {
		p := byName[queue[0]]
		if taken[p.name] || slices.Contains(part.without, p.name) {
			continue
		}
		taken[p.name] = true
		chosen = append(chosen, p)
		for _, alternatives := range p.needs {
			if name, ok := firstInstalled(alternatives, byName, providers); ok {
				queue = append(queue, name)
			}
		}
	}
	slices.SortFunc(chosen, func(a, b debian) int { return cmp.Compare(a.name, b.name) })
	slices.Sort(missing)
	return chosen, missing
}

func firstInstalled(alternatives []string, byName map[string]debian, providers map[string][]string) (string, bool) {
	for _, name := range alternatives {
		if _, ok := byName[name]; ok {
			return name, true
		}
		if by := providers[name]; len(by) > 0 {
			return slices.Min(by), true
		}
	}
	return "", false
}

// version is of how a layer is made; a change of this package that changes the layers changes it.
const version = 2

// key names the layer that packages make.
func key(chosen []debian) string {
	h := sha256.New()
	fmt.Fprintln(h, version, omitted, directories, made, linked)
	for _, p := range chosen {
		fmt.Fprintln(h, p.name, p.version, p.arch)
	}
	return fmt.Sprintf("debian-%x", h.Sum(nil)[:16])
}

// An entry is a path of a package's: where the machine has it and where the layer, both without the first slash; sum is empty for what is
// no regular file.
type entry struct{ source, target, sum string }

// entries are what a package has for the layer.
func (p *debian) entries(c content, diversions map[string]diversion, has func(pkg string) bool) (all []entry) {
	for _, listed := range c.paths {
		if !path.IsAbs(listed) || path.Clean(listed) != listed || listed == "/" {
			continue
		}
		e := entry{source: listed, target: listed, sum: c.sums[listed]}
		if d, ok := diversions[listed]; ok && d.by != p.name {
			if e.source = d.to; has(d.by) {
				e.target = d.to
			}
		}
		e.target = InLayer(e.target)
		if path.Clean(e.source) == e.source && !isOmitted(e.target) {
			e.source, e.target = strings.TrimPrefix(e.source, "/"), strings.TrimPrefix(e.target, "/")
			all = append(all, e)
		}
	}
	return all
}

// InLayer is where an absolute path of a package's leads in the layer, where /bin and its like are links into /usr.
func InLayer(name string) string {
	top, _, _ := strings.Cut(name[1:], "/")
	if slices.Contains(merged, top) {
		return "/usr" + name
	}
	return name
}

func isOmitted(name string) bool {
	if strings.HasPrefix(name, "/usr/lib/locale/") && !strings.HasPrefix(name, "/usr/lib/locale/C.") || strings.Contains(name, "/gconv/") {
		return true // languages, and other ways to write them than UTF-8
	}
	return slices.ContainsFunc(omitted, func(o string) bool { return name == o || strings.HasPrefix(name, o+"/") })
}

// MovedLink is what a link at a package's path, without the first slash, says where it stands in the layer: one that led up from a
// directory that is in /usr there would lead elsewhere.
func MovedLink(source, target string) string {
	if path.IsAbs(target) || InLayer("/"+source) == "/"+source || !strings.Contains(target, "/") {
		return target
	}
	return InLayer(path.Join("/", path.Dir(source), target))
}

// reached are the links that lead to something in the layer, or to another link that does, by their paths without the first slash.
func reached(links map[string]string, has func(name string) bool) map[string]string {
	kept := map[string]string{}
	for again := true; again; {
		again = false
		for name, target := range links {
			if _, ok := kept[name]; ok || has(name) {
				continue
			}
			to := target
			if !path.IsAbs(to) {
				to = path.Join("/", path.Dir(name), to)
			}
			to = strings.TrimPrefix(InLayer(path.Clean(to)), "/")
			if _, ok := kept[to]; ok || has(to) {
				kept[name], again = target, true
			}
		}
	}
	return kept
}

// choose makes the links of an alternative: to the choice with the highest priority among those that the layer has, as if nobody had
// chosen.
func (a *alternative) choose(has func(name string) bool) map[string]string {
	there := func(name string) bool {
		return path.IsAbs(name) && has(strings.TrimPrefix(InLayer(path.Clean(name)), "/"))
	}
	var best *choice
	for i := range a.choices {
		if c := &a.choices[i]; there(c.paths[0]) && (best == nil || c.priority > best.priority) {
			best = c
		}
	}
	links := map[string]string{}
	if best == nil {
		return links
	}
	for i, name := range a.names {
		link := InLayer(path.Clean("/" + a.links[i]))
		if there(best.paths[i]) && name == path.Base(name) && !isOmitted(link) {
			links["etc/alternatives/"+name] = best.paths[i]
			links[strings.TrimPrefix(link, "/")] = "/etc/alternatives/" + name
		}
	}
	return links
}
