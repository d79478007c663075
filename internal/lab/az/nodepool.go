package az

import (
	"io"
	"slices"
	"strings"

	"packetwalk.dev/internal/azure/arm"
	"packetwalk.dev/internal/lab/cluster"
)

// poolOptions are the arguments of "az aks nodepool add".
type poolOptions struct {
	count, size, maxPods, mode, taints, subnet string
	labels, zones                              []string
}

// poolFlags returns the arguments of what makes and deletes a node pool.
func poolFlags(o *options, more flags) flags {
	more["-g"], more["--resource-group"], more["--cluster-name"] = &o.group, &o.group, &o.parent
	more["-n"], more["--name"], more["--nodepool-name"], more["--no-wait"] = &o.name, &o.name, &o.name, &o.noWait
	return output(o, more)
}

var addPool = command{
	words: "aks nodepool add", needs: []string{needsName}, table: aksPool.table,
	usage: "aks nodepool add [-g GROUP] [--cluster-name CLUSTER] -n POOL [-c COUNT] [-s VM_SIZE] [-m MAX_PODS] [--mode User|System] " +
		"[--labels KEY=VALUE...] [--node-taints KEY=VALUE:EFFECT,...] [--vnet-subnet-id ID] [-z ZONE...] [--no-wait]",
	flags: func(o *options) flags {
		p := &o.newPool
		return poolFlags(o, flags{
			"-c": &p.count, "--node-count": &p.count, "-s": &p.size, "--node-vm-size": &p.size, "-m": &p.maxPods, "--max-pods": &p.maxPods,
			"--mode": &p.mode, "--labels": &p.labels, "--node-taints": &p.taints, "--vnet-subnet-id": &p.subnet, "-z": &p.zones, "--zones": &p.zones,
		})
	},
	run: func(l Lab, o options, _ io.Writer) (any, error) {
		if err := o.knownCluster(l.Cluster); err != nil {
			return nil, err
		}
		pool, err := o.newPool.pool(l, o.name)
		if err != nil {
			return nil, err
		}
		now, err := l.edit(o, func(source []byte) ([]byte, error) { return cluster.AddPool(source, pool) })
		if err != nil || o.noWait {
			return nil, err
		}
		o.group, o.parent = now.Network.ResourceGroup, now.Cluster.Metadata.Name
		return aksPool.named(now, o)
	},
}

var deletePool = command{
	words: "aks nodepool delete", needs: []string{needsName},
	usage: "aks nodepool delete [-g GROUP] [--cluster-name CLUSTER] -n POOL [--no-wait]",
	flags: func(o *options) flags { return poolFlags(o, flags{}) },
	run: func(l Lab, o options, _ io.Writer) (any, error) {
		if err := o.knownCluster(l.Cluster); err != nil {
			return nil, err
		}
		pool, _, err := onePool(l.Cluster, "aks nodepool", o.name, 0)
		if err != nil {
			return nil, err
		}
		others := slices.DeleteFunc(slices.Clone(l.Cluster.Spec.NodePools), func(p cluster.NodePool) bool { return p.Name == pool })
		if !slices.ContainsFunc(others, func(p cluster.NodePool) bool { return p.Mode == cluster.ModeSystem }) {
			return nil, usage("node pool '%s' cannot be deleted: a cluster needs a node pool of mode System", pool)
		}
		_, err = l.edit(o, func(source []byte) ([]byte, error) { return cluster.RemovePool(source, pool) })
		return nil, err
	},
}

// knownCluster checks that the cluster and its group, where they are named, are the lab's.
func (o *options) knownCluster(c *cluster.Cluster) error {
	if err := o.clusterGroup(c); err != nil {
		return err
	}
	return noCluster(c, o.parent)
}

// defaultNewCount is how many nodes a new pool has without --node-count, and az's default.
const defaultNewCount = 3

// pool returns the pool that the arguments describe, of mode User unless they say another. What they do not say is as with the first pool.
func (p *poolOptions) pool(l Lab, name string) (cluster.NodePool, error) {
	first := l.Cluster.Spec.NodePools[0]
	pool := cluster.NodePool{
		Name: name, Count: defaultNewCount, VMSize: p.size, Mode: cluster.ModeUser, AvailabilityZones: p.zones, VNetSubnet: first.VNetSubnet,
		Runtime: first.Runtime,
	}
	if err := parseNumber(&pool.Count, "--node-count/-c", p.count, 1, cluster.MaxPoolNodes, "a pool has %d to %d nodes in the lab"); err != nil {
		return pool, err
	}
	err := parseNumber(&pool.MaxPods, "--max-pods/-m", p.maxPods, cluster.MinMaxPods, cluster.MaxMaxPods, "a node has %d to %d pods")
	if err != nil {
		return pool, err
	}
	switch {
	case strings.EqualFold(p.mode, string(cluster.ModeSystem)):
		pool.Mode = cluster.ModeSystem
	case p.mode != "" && !strings.EqualFold(p.mode, string(cluster.ModeUser)):
		return pool, usage("argument --mode: invalid choice: '%s' (choose from System, User)", p.mode)
	}
	if p.taints != "" {
		pool.NodeTaints = strings.Split(p.taints, ",")
	}
	for _, label := range p.labels {
		key, value, _ := strings.Cut(label, "=")
		if pool.NodeLabels == nil {
			pool.NodeLabels = map[string]string{}
		}
		pool.NodeLabels[key] = value
	}
	if p.subnet == "" {
		return pool, nil
	}
	pool.VNetSubnet, err = subnetOf(l, p.subnet)
	return pool, err
}

// subnetOf returns "vnet/subnet" of a subnet's resource id.
func subnetOf(l Lab, id string) (string, error) {
	var known []string
	for _, v := range l.Network.VNets {
		for _, s := range v.Subnets {
			one := arm.SubnetID(l.Network, v.Name, s.Name)
			if strings.EqualFold(one, id) {
				return v.Name + "/" + s.Name, nil
			}
			known = append(known, one)
		}
	}
	return "", usage("--vnet-subnet-id: there is no subnet '%s'; there are %s", id, strings.Join(known, ", "))
}
