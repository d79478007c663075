package aci

import (
	"errors"
	"strings"
	"testing"
)

// Every name that becomes a path is one that stays where it is put.
func TestCheck(t *testing.T) {
	group := func() *ContainerGroup {
		return &ContainerGroup{Name: "default-web-0", Properties: GroupProperties{
			Volumes: []Volume{{Name: "conf", Secret: map[string]string{"a.conf": "", "sub/.hidden": ""}}, {Name: "scratch", EmptyDir: &struct{}{}}},
			Containers: []Container{{Name: "web", Properties: ContainerProperties{
				VolumeMounts: []VolumeMount{{Name: "conf", MountPath: "/etc/app"}, {Name: "scratch", MountPath: "/data/"}}}}},
		}}
	}
	if err := group().Check(); err != nil {
		t.Fatal(err)
	}
	refused := func(code string, change func(*ContainerGroup)) {
		t.Helper()
		g := group()
		change(g)
		var e *Error
		if err := g.Check(); !errors.As(err, &e) || e.Code != code {
			t.Errorf("%s: %v", code, err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "/a", "a/../b", "A", "a.b", "a_b", "-a", "a-", "a\x00", "a\nb",
		strings.Repeat("a", 64)} {
		refused("InvalidContainerGroupName", func(g *ContainerGroup) { g.Name = name })
		refused("InvalidContainerName", func(g *ContainerGroup) { g.Properties.Containers[0].Name = name })
		refused("InvalidVolumeName", func(g *ContainerGroup) { g.Properties.Volumes[1].Name = name })
	}
	for _, name := range []string{"", ".", "..", "../x", "/a", "a/../../b", "a/../b", "a/", "./a", "a//b", "..data", "..data/x", "a\x00b",
		"a\nb",
		strings.Repeat("a", 256), strings.Repeat("a/", 1024) + "a"} {
		refused("InvalidVolumeFile", func(g *ContainerGroup) { g.Properties.Volumes[0].Secret[name] = "" })
	}
	for _, path := range []string{"", "data", "/", "//", "/x/..", "../x", "/proc", "/proc/1", "/x/../proc/self", "/a\nb",
		"/" + strings.Repeat("a", 256)} {
		refused("InvalidMountPath", func(g *ContainerGroup) { g.Properties.Containers[0].Properties.VolumeMounts[0].MountPath = path })
	}
	refused("InvalidVolumeName", func(g *ContainerGroup) { g.Properties.Volumes[1].Name = "conf" })
	refused("InvalidContainerName", func(g *ContainerGroup) {
		g.Properties.Containers = append(g.Properties.Containers, g.Properties.Containers[0])
	})
	refused("VolumeNotFound", func(g *ContainerGroup) { g.Properties.Volumes = g.Properties.Volumes[:1] })
}
