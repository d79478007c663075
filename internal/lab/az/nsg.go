package az

import (
	"cmp"
	"io"
	"strings"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/azure/vnet"
)

const effectiveGroupsWords = "network nic list-effective-nsg"

// effectiveGroups returns the security groups that a NIC's flows meet.
func effectiveGroups(l Lab, o options, _ io.Writer) (any, error) {
	return effective(l, o, arm.EffectiveSecurityGroups)
}

// effective returns what the provider says of the NIC that the options name.
func effective[T any](l Lab, o options, of func(vnet.Network, vnet.NIC) T) (any, error) {
	found, err := nics.named(l, o)
	if err != nil {
		return nil, err
	}
	nic, _ := l.Network.NIC(field(found, "name"))
	all, err := view([]T{of(l.Network, nic)})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// effectiveRows returns the rules of all groups as rows of az's table. The first of a group names it.
func effectiveRows(result object) []any {
	var rows []any
	for _, g := range list(result, "value") {
		association, _ := g["association"].(object)
		names := object{"group": lastOf(g["networkSecurityGroup"]), "nic": cmp.Or(lastOf(association["networkInterface"]), "-"),
			"subnet": cmp.Or(lastOf(association["subnet"]), "-")}
		for _, r := range list(g, "effectiveSecurityRules") {
			for k, v := range r {
				names[k] = v
			}
			rows, names = append(rows, names), object{}
		}
	}
	return rows
}

// lastOf returns the name in the id of a reference, "" for none.
func lastOf(reference any) string {
	id := field(reference, "id")
	return id[strings.LastIndexByte(id, '/')+1:]
}
