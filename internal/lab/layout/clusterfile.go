package layout

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"

	"packetwalk.dev/internal/azure/fabric"
	"packetwalk.dev/internal/base/atomicfile"
	"packetwalk.dev/internal/base/limitio"
	"packetwalk.dev/internal/kernel/netns"
	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/pods/app"
)

// NextClusterFile returns the configuration that the lab is being changed to.
func (d Dir) NextClusterFile() string { return d.ClusterFile() + ".next" }

// EndLine is the last line of both. Any part of a cluster.yaml may be a valid one, of another cluster.
const EndLine = "# the end: without this line the file is not whole\n"

// WriteClusterFile writes a cluster.yaml for readSource.
func WriteClusterFile(path string, source []byte) error {
	return atomicfile.Write(path, slices.Concat(bytes.TrimSuffix(source, []byte("\n")), []byte("\n"+EndLine)), 0o600)
}

// ReadClusterFile reads what writeCluster wrote.
func ReadClusterFile(path string) ([]byte, error) {
	text, err := limitio.ReadFile(path, MaxClusterFile+int64(len(EndLine))+1)
	if err != nil {
		return nil, err
	}
	source, whole := bytes.CutSuffix(text, []byte(EndLine))
	if !whole {
		return nil, errors.New("it is cut off: its last line is missing")
	}
	return source, nil
}

// ClusterSource returns the cluster.yaml that a lab was made from, or will be changed to when its process, which is dead, is started again.
// A lab is there when it has that file; namespaces or a process without one are a lab that lost it, and an error.
func (d Dir) ClusterSource() (source []byte, there bool, err error) {
	if d.Process() == 0 {
		if next, err := ReadClusterFile(d.NextClusterFile()); err == nil {
			if _, err := d.Parse(next); err == nil {
				return next, true, nil
			}
		}
	}
	source, err = ReadClusterFile(d.ClusterFile())
	if err == nil {
		return source, true, nil
	}
	spaces, lost := netns.Mounted(d.Path("netns"))
	if !errors.Is(err, os.ErrNotExist) || lost != nil || len(spaces) > 0 || d.Process() != 0 {
		return nil, true, d.DamagedError(err)
	}
	return nil, false, nil
}

// DamagedError returns the error of a lab whose cluster.yaml cannot be used. Nothing of the lab is touched: what is established goes on.
func (d Dir) DamagedError(err error) error {
	return fmt.Errorf("%s: %w\nnothing was done, and what is established goes on; put back what the file said, or remove the lab with 'packetwalk down --name %s'",
		d.ClusterFile(), err, d.Name())
}

// MaxClusterFile is the most bytes of a cluster.yaml that are read; one that is parsed has at most as many.
const MaxClusterFile = 1 << 21

// placement returns where the machines of the lab have their addresses, by the fabric's file.
func (d Dir) placement() (cluster.Placement, error) {
	n, err := fabric.ReadNetwork(d.FabricState())
	return plan.Placement(n), err
}

// Cluster reads the lab's own cluster.yaml.
func (d Dir) Cluster() (*cluster.Cluster, error) {
	var c *cluster.Cluster
	source, err := ReadClusterFile(d.ClusterFile())
	if err == nil {
		c, err = d.Parse(source)
	}
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", d.Name(), err)
	}
	return c, nil
}

// Parse reads a cluster.yaml for the lab as it is, or one that is not there yet. A file that is wrong gives [cluster.Errors].
func (d Dir) Parse(source []byte) (*cluster.Cluster, error) {
	placed, err := d.placement()
	if err != nil {
		return nil, err
	}
	c, errs := cluster.Parse(placed, source, app.Servers()...)
	if len(errs) > 0 {
		return nil, errs
	}
	return c, nil
}
