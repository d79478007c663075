package cluster

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// SetCount gives the cluster.yaml with another count of a pool's nodes; everything else in it, comments too, stays. The file must be one
// that Parse takes, with whatever placement: it is not validated here. A pool that it does not have is an error.
func SetCount(source []byte, pool string, count int) ([]byte, error) {
	c := &Cluster{}
	if _, err := c.decode(source); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(c.Spec.NodePools, func(p NodePool) bool { return p.Name == pool })
	if at < 0 {
		return nil, fmt.Errorf("no node pool %q; there are %s", pool, strings.Join(c.PoolNames(), ", "))
	}
	root, err := document(source)
	if err != nil {
		return nil, err
	}
	if root == nil || root.Kind != yaml.MappingNode {
		root = &yaml.Node{Kind: yaml.MappingNode}
	}
	pools := child(child(root, "spec", yaml.MappingNode), "nodePools", yaml.SequenceNode)
	if len(pools.Content) == 0 { // the default pool
		pools.Content = []*yaml.Node{{Kind: yaml.MappingNode}}
		*child(pools.Content[0], "name", yaml.ScalarNode) = yaml.Node{Kind: yaml.ScalarNode, Value: pool}
	}
	own(&pools.Content[at], yaml.MappingNode)
	child(pools.Content[at], "count", yaml.ScalarNode).SetString(strconv.Itoa(count))
	child(pools.Content[at], "count", yaml.ScalarNode).Tag = "!!int"
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, err
	}
	return out.Bytes(), enc.Close()
}

// PoolNames are the names of the node pools.
func (c *Cluster) PoolNames() []string {
	var all []string
	for _, p := range c.Spec.NodePools {
		all = append(all, p.Name)
	}
	return all
}

// child is the value of a key of a mapping, which is made where there is none.
func child(m *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			own(&m.Content[i+1], kind)
			return m.Content[i+1]
		}
	}
	value := &yaml.Node{Kind: kind}
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	return value
}

// own makes a node that can be changed without changing others: of an alias a copy, of nothing (null) an empty node of the kind.
func own(n **yaml.Node, kind yaml.Kind) {
	node := **n
	if node.Kind == yaml.AliasNode {
		node = *node.Alias
		node.Content = slices.Clone(node.Content)
	}
	node.Anchor = (*n).Anchor
	if node.Kind != kind {
		node = yaml.Node{Kind: kind, HeadComment: node.HeadComment, LineComment: node.LineComment, FootComment: node.FootComment}
	}
	*n = &node
}
