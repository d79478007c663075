package lifecycle

import "packetwalk.dev/internal/lab/cluster"

// A Change leads from one cluster to another. Progress gets the steps that are done.
type Change struct {
	From, To *cluster.Cluster
	Progress func(Step)
	Deadline Deadline
}

// A PendingChange is a change that an earlier lab process began and did not finish.
type PendingChange struct {
	From   *cluster.Cluster
	Source []byte // of the cluster.yaml that it led to; nil when there was none
}
