package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// SetCount gives the cluster.yaml with another count of a pool's nodes; everything else in it, comments too, stays. The file must be one
// that Parse takes, with whatever placement: it is not validated here. A pool that it does not have is an error.
func SetCount(source []byte, pool string, count int) ([]byte, error) {
	f, err := openPools(source)
	if err != nil {
		return nil, err
	}
	at, err := f.find(pool)
	if err != nil {
		return nil, err
	}
	f.setCount(at, count)
	return f.text()
}

// AddPool gives the cluster.yaml with one more node pool, as SetCount does with a count.
func AddPool(source []byte, pool NodePool) ([]byte, error) {
	f, err := openPools(source)
	if err != nil {
		return nil, err
	}
	if slices.Contains(f.names, pool.Name) {
		return nil, fmt.Errorf("node pool %q already exists", pool.Name)
	}
	data, err := json.Marshal(pool)
	if err != nil {
		return nil, err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(data, &n); err != nil {
		return nil, err
	}
	plain(n.Content[0])
	for i := range f.names {
		f.setName(i)
	}
	f.pools.Content = append(f.pools.Content, n.Content[0])
	return f.text()
}

// RemovePool gives the cluster.yaml without a node pool, as SetCount does with a count.
func RemovePool(source []byte, pool string) ([]byte, error) {
	f, err := openPools(source)
	if err != nil {
		return nil, err
	}
	at, err := f.find(pool)
	if err != nil {
		return nil, err
	}
	f.pools.Content = slices.Delete(f.pools.Content, at, at+1)
	return f.text()
}

// poolFile is a cluster.yaml whose node pools are edited: they are written out.
type poolFile struct {
	root, pools *yaml.Node
	names       []string
}

func openPools(source []byte) (*poolFile, error) {
	c := &Cluster{}
	if _, err := c.decode(source); err != nil {
		return nil, err
	}
	root, err := document(source)
	if err != nil {
		return nil, err
	}
	if root == nil || root.Kind != yaml.MappingNode {
		root = &yaml.Node{Kind: yaml.MappingNode}
	}
	f := &poolFile{root, child(child(root, "spec", yaml.MappingNode), "nodePools", yaml.SequenceNode), c.PoolNames()}
	for i := range f.names {
		if i == len(f.pools.Content) { // the default pool
			f.pools.Content = append(f.pools.Content, &yaml.Node{Kind: yaml.MappingNode})
			f.setName(i)
			f.setCount(i, c.Spec.NodePools[i].Count)
		}
		makeEditable(&f.pools.Content[i], yaml.MappingNode)
	}
	return f, nil
}

// setName writes a pool's name out, which the file may leave out where there is one pool.
func (f *poolFile) setName(i int) {
	*child(f.pools.Content[i], "name", yaml.ScalarNode) = yaml.Node{Kind: yaml.ScalarNode, Value: f.names[i]}
}

// setCount writes a pool's number of nodes.
func (f *poolFile) setCount(i, count int) {
	value := child(f.pools.Content[i], "count", yaml.ScalarNode)
	value.SetString(strconv.Itoa(count))
	value.Tag = "!!int"
}

func (f *poolFile) find(pool string) (int, error) {
	at := slices.Index(f.names, pool)
	if at < 0 {
		return 0, fmt.Errorf("no node pool %q; there are %s", pool, strings.Join(f.names, ", "))
	}
	return at, nil
}

func (f *poolFile) text() ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(f.root); err != nil {
		return nil, err
	}
	return out.Bytes(), enc.Close()
}

// PoolNames returns the names of the node pools.
func (c *Cluster) PoolNames() []string {
	var all []string
	for _, p := range c.Spec.NodePools {
		all = append(all, p.Name)
	}
	return all
}

// child returns the value of a key of a mapping, which is made where there is none.
func child(m *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			makeEditable(&m.Content[i+1], kind)
			return m.Content[i+1]
		}
	}
	value := &yaml.Node{Kind: kind}
	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, value)
	return value
}

// makeEditable replaces an alias by a copy, and null by an empty node of the kind.
func makeEditable(n **yaml.Node, kind yaml.Kind) {
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
