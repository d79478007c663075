package az

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/lab/cluster"
)

// scale is "az aks scale" and "az aks nodepool scale": it has the lab change a pool's count, and shows the cluster, or the pool, as it is
// then.
func scale(words string, l Lab, args []string) (any, options, error) {
	o := options{format: "json"}
	if err := o.parse(args, o.scaleFlags(words), map[string]*bool{"--no-wait": &o.noWait}); err != nil || o.help {
		return nil, o, err
	}
	pool, count, err := o.scaling(words, l)
	if err != nil {
		return nil, o, err
	}
	if l.Scale == nil {
		return nil, o, fmt.Errorf("nothing can be changed here")
	}
	now, err := l.Scale(pool, count, !o.noWait)
	if err != nil || o.noWait {
		return nil, o, err
	}
	o.group, o.parent, o.name = now.Network.ResourceGroup, now.Cluster.Metadata.Name, pool
	if words == "aks" {
		o.name = now.Cluster.Metadata.Name
	}
	i := slices.IndexFunc(commands, func(c command) bool { return c.words == words })
	result, err := commands[i].run("show", now, o)
	if err != nil {
		return nil, o, err
	}
	result, err = commands[i].present("show", o, result)
	return result, o, err
}

// scaleFlags are az's: "az aks scale" names the cluster with --name and the pool with --nodepool-name, "az aks nodepool scale" the cluster
// with --cluster-name and the pool with --name.
func (o *options) scaleFlags(words string) map[string]*string {
	flags := map[string]*string{
		"-g": &o.group, "--resource-group": &o.group, "-n": &o.name, "--name": &o.name, "-c": &o.count, "--node-count": &o.count,
		"--nodepool-name": &o.pool, "-o": &o.format, "--output": &o.format, "--query": &o.query,
	}
	if words == "aks nodepool" {
		flags["--cluster-name"], flags["--nodepool-name"] = &o.parent, &o.name
	}
	return flags
}

// scaling says which pool is meant and how many nodes it is to have. A lab has one cluster, so that neither it nor its group has to be
// named, and "az aks scale -n" takes a pool's name too.
func (o *options) scaling(words string, l Lab) (pool string, count int, err error) {
	c := l.Cluster
	if o.count == "" {
		return "", 0, usage("the following arguments are required: --node-count/-c")
	}
	count, err = strconv.Atoi(o.count)
	if err != nil {
		return "", 0, usage("argument --node-count/-c: invalid int value: '%s'", o.count)
	}
	if count < 1 || count > cluster.MaxPoolNodes {
		return "", 0, usage("argument --node-count/-c: %d is not possible: a pool has 1 to %d nodes in the lab", count, cluster.MaxPoolNodes)
	}
	if o.group != "" && !strings.EqualFold(o.group, c.Spec.Azure.ResourceGroup) {
		return "", 0, notFound("(ResourceGroupNotFound) Resource group '%s' could not be found; the cluster is in '%s'", o.group,
			c.Spec.Azure.ResourceGroup)
	}
	named, pool := o.name, o.pool
	if words == "aks nodepool" {
		named, pool = o.parent, o.name
	}
	if words == "aks" && named != "" && pool == "" && slices.Contains(c.PoolNames(), named) {
		if len(c.Spec.NodePools) > 1 && isCluster(c, named) {
			return "", 0, usage("argument --name/-n: '%s' is the cluster and one of its node pools; write --nodepool-name too", named)
		}
		named, pool = "", named
	}
	if named != "" && !isCluster(c, named) {
		return "", 0, notFound("(ResourceNotFound) there is no cluster '%s'; the lab's is '%s', its node pools are %s", named, c.Metadata.Name,
			strings.Join(c.PoolNames(), ", "))
	}
	return onePool(c, words, pool, count)
}

func isCluster(c *cluster.Cluster, name string) bool { return strings.EqualFold(c.Metadata.Name, name) }

// onePool finds the pool by its name, or the only one there is.
func onePool(c *cluster.Cluster, words, pool string, count int) (string, int, error) {
	all := strings.Join(c.PoolNames(), ", ")
	switch {
	case pool == "" && words == "aks nodepool":
		return "", 0, usage("the following arguments are required: --name/--nodepool-name/-n; the node pools are %s", all)
	case pool == "" && len(c.Spec.NodePools) > 1:
		return "", 0, usage("there is more than one node pool in the cluster (%s); say which with --nodepool-name", all)
	case pool == "":
		return c.Spec.NodePools[0].Name, count, nil
	case !slices.Contains(c.PoolNames(), pool):
		return "", 0, notFound("the nodepool \"%s\" was not found; there are %s", pool, all)
	}
	return pool, count, nil
}
