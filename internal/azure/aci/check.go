package aci

import (
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"unicode"
)

// label is what Azure takes as the name of a group, a container and a volume ("Naming rules and restrictions for Azure resources",
// learn.microsoft.com). Each becomes a file name of who runs the group.
var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Check returns an error for a group with invalid names, or whose parts do not fit together.
func (g *ContainerGroup) Check() error {
	if !label.MatchString(g.Name) {
		return BadRequest("InvalidContainerGroupName",
			"The container group name '%s' is invalid: it has at most 63 lower-case letters, digits and -.", g.Name)
	}
	volumes := map[string]bool{}
	for i := range g.Properties.Volumes {
		v := &g.Properties.Volumes[i]
		if !label.MatchString(v.Name) || volumes[v.Name] {
			return BadRequest("InvalidVolumeName", "The volume name '%s' in container group '%s' is invalid or there twice.", v.Name, g.Name)
		}
		volumes[v.Name] = true
		for name := range v.Secret {
			if !fileName(name) {
				return BadRequest("InvalidVolumeFile", "The file name '%s' of volume '%s' in container group '%s' is invalid.", name, v.Name, g.Name)
			}
		}
	}
	containers := map[string]bool{}
	for i := range g.Properties.Containers {
		c := &g.Properties.Containers[i]
		if !label.MatchString(c.Name) || containers[c.Name] {
			return BadRequest("InvalidContainerName", "The container name '%s' in container group '%s' is invalid or there twice.", c.Name, g.Name)
		}
		containers[c.Name] = true
		for _, m := range c.Properties.VolumeMounts {
			if !volumes[m.Name] {
				return BadRequest("VolumeNotFound", "The volume '%s' of container '%s' is not found in container group '%s'.", m.Name, c.Name, g.Name)
			}
			if !mountPath(m.MountPath) {
				return BadRequest("InvalidMountPath",
					"The mount path '%s' of container '%s' in container group '%s' is invalid.", m.MountPath, c.Name, g.Name)
			}
		}
	}
	return nil
}

// maxPath is the most bytes that a path has here (limits.h, PATH_MAX, with room for what stands before it).
const maxPath = 1024

// fileName reports whether a name is one of a file in a volume, perhaps in directories; those that begin with .. are who writes the files'.
func fileName(name string) bool {
	return filepath.IsLocal(name) && path.Clean(name) == name && name != "." && !strings.HasPrefix(name, "..") && plain(name)
}

func mountPath(name string) bool {
	clean := path.Clean(name)
	return path.IsAbs(name) && clean != "/" && clean != "/proc" && !strings.HasPrefix(clean, "/proc/") && plain(name)
}

// plain reports whether a path has no control characters and is as long as paths may be.
func plain(name string) bool {
	for element := range strings.SplitSeq(name, "/") {
		if len(element) > 255 { // limits.h, NAME_MAX
			return false
		}
	}
	return len(name) <= maxPath && !strings.ContainsFunc(name, unicode.IsControl)
}
