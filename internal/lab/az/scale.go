package az

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"

	"packetwalk.dev/internal/lab/cluster"
)

// scaling returns the command "az aks scale" or "az aks nodepool scale": it has the lab change a pool's count, and shows the cluster, or
// the pool, as it is then. The first names the cluster with --name and the pool with --nodepool-name, the second the cluster with
// --cluster-name and the pool with --name.
func scaling(words, usage string) command {
	shown := aksCluster
	if words == aksPool.words {
		shown = aksPool
	}
	return command{
		words: words + " scale", usage: words + " scale " + usage, needs: []string{"--node-count/-c"}, table: shown.table,
		flags: func(o *options) flags {
			f := output(o, flags{
				"-g": &o.group, "--resource-group": &o.group, "-n": &o.name, "--name": &o.name, "-c": &o.count, "--node-count": &o.count,
				"--nodepool-name": &o.pool, "--no-wait": &o.noWait,
			})
			if words == aksPool.words {
				f["--cluster-name"], f["--nodepool-name"] = &o.parent, &o.name
			}
			return f
		},
		run: func(l Lab, o options, _ io.Writer) (any, error) {
			pool, count, err := o.scaling(words, l)
			if err != nil {
				return nil, err
			}
			now, err := l.edit(o, func(source []byte) ([]byte, error) { return cluster.SetCount(source, pool, count) })
			if err != nil || o.noWait {
				return nil, err
			}
			o.group, o.parent, o.name = now.Network.ResourceGroup, now.Cluster.Metadata.Name, pool
			if words == aksCluster.words {
				o.name = now.Cluster.Metadata.Name
			}
			return shown.named(now, o)
		},
	}
}

// edit has the lab change, as az does: it waits unless --no-wait is among the options.
func (l Lab) edit(o options, change func(source []byte) ([]byte, error)) (Lab, error) {
	if l.Edit == nil {
		return Lab{}, errors.New("nothing can be changed here")
	}
	return l.Edit(change, !o.noWait)
}

// parseNumber reads the value of a flag, between least and most. An empty text changes nothing. bounds is the end of the error, with both.
func parseNumber(into *int, flag, text string, least, most int, bounds string) error {
	if text == "" {
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return usage("argument %s: invalid int value: '%s'", flag, text)
	}
	if n < least || n > most {
		return usage("argument %s: %d is not possible: "+bounds, flag, n, least, most)
	}
	*into = n
	return nil
}

// scaling returns the pool and its new number of nodes. A lab has one cluster, so the options for the cluster and its group may be
// missing, and "az aks scale -n" takes a pool's name too.
func (o *options) scaling(words string, l Lab) (pool string, count int, err error) {
	c := l.Cluster
	if o.count == "" {
		return "", 0, usage("argument --node-count/-c: invalid int value: ''")
	}
	if err := parseNumber(&count, "--node-count/-c", o.count, 1, cluster.MaxPoolNodes, "a pool has %d to %d nodes in the lab"); err != nil {
		return "", 0, err
	}
	if err := o.clusterGroup(c); err != nil {
		return "", 0, err
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
	if err := noCluster(c, named); err != nil {
		return "", 0, err
	}
	return onePool(c, words, pool, count)
}

// clusterGroup checks that the group, if one is named, is the cluster's.
func (o *options) clusterGroup(c *cluster.Cluster) error {
	if o.group == "" || strings.EqualFold(o.group, c.Spec.Azure.ResourceGroup) {
		return nil
	}
	return notFound("(ResourceGroupNotFound) Resource group '%s' could not be found; the cluster is in '%s'", o.group, c.Spec.Azure.ResourceGroup)
}

// noCluster returns an error for a name that is not the cluster's. An empty name stands for any cluster.
func noCluster(c *cluster.Cluster, name string) error {
	if name == "" || isCluster(c, name) {
		return nil
	}
	return notFound("(ResourceNotFound) there is no cluster '%s'; the lab's is '%s', its node pools are %s", name, c.Metadata.Name,
		strings.Join(c.PoolNames(), ", "))
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
