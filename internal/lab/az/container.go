package az

import (
	"errors"
	"io"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/aci"
)

// allContainerGroups returns the container groups as lists have them.
func allContainerGroups(l Lab) ([]any, error) {
	groups := []aci.ContainerGroup{}
	for _, g := range l.ContainerGroups {
		groups = append(groups, g.Listed())
	}
	return view(groups)
}

// groupNamed returns the container group that the options name.
func groupNamed(l Lab, o options) (g aci.ContainerGroup, err error) {
	i := slices.IndexFunc(l.ContainerGroups, func(g aci.ContainerGroup) bool { return strings.EqualFold(g.Name, o.name) })
	if i < 0 {
		return g, notFound("(ResourceNotFound) The Resource '%s/%s' was not found", aci.Type, o.name)
	}
	return l.ContainerGroups[i], nil
}

// containerGroup returns the view of one group, with how it is.
func containerGroup(l Lab, o options) (any, error) {
	g, err := groupNamed(l, o)
	if err != nil {
		return nil, err
	}
	all, err := view([]aci.ContainerGroup{g.Public()})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// containerLogs returns "az container logs": the log of a container, by default the group's first.
func containerLogs(l Lab, o options, w io.Writer) (any, error) {
	g, err := groupNamed(l, o)
	if err != nil {
		return nil, err
	}
	if l.ContainerLogs == nil {
		return nil, errors.New("no container has logs")
	}
	if o.container == "" {
		o.container = g.Properties.Containers[0].Name
	}
	return nil, l.ContainerLogs(g.Name, o.container, o.follow, w)
}
