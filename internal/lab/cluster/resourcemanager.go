package cluster

// ResourceManager says how long the operations of the lab's Azure Resource Manager last, and how many requests it takes. The lab's cloud
// controllers are among its clients.
type ResourceManager struct {
	// OperationSeconds is how long an operation lasts that creates, changes or deletes a network resource, at most 3600. Default 0: it has
	// ended when a client first asks. Its change takes effect at once.
	OperationSeconds int `json:"operationSeconds,omitempty"`
	// ReadLimit limits GET requests, for each principal. Default: no limit.
	ReadLimit RequestLimit `json:"readLimit,omitzero"`
	// WriteLimit limits PUT, PATCH and POST requests, for each principal. Default: no limit.
	WriteLimit RequestLimit `json:"writeLimit,omitzero"`
	// DeleteLimit limits DELETE requests, for each principal. Default: no limit.
	DeleteLimit RequestLimit `json:"deleteLimit,omitzero"`
}

// RequestLimit is a token bucket. A request without a token gets status 429. On Azure a bucket for reads has 250 tokens and gets 25 more in
// a second. One for writes or deletes has 200 and gets 10.
type RequestLimit struct {
	// Bucket is the number of requests at once, 1 to 100000. Required.
	Bucket int `json:"bucket,omitempty"`
	// PerHour is the number of requests that are added in an hour, 1 to 1000000. Required.
	PerHour int `json:"perHour,omitempty"`
}

const (
	maxOperationSeconds = 3600
	maxBucket           = 100_000
	maxPerHour          = 1_000_000
)

func (v *validator) resourceManager() {
	const at = "spec.azure.resourceManager"
	m := v.c.Spec.Azure.ResourceManager
	v.checkRange(at+".operationSeconds", m.OperationSeconds, 0, maxOperationSeconds)
	limit := func(name string, l RequestLimit) {
		if l != (RequestLimit{}) {
			v.checkRange(at+"."+name+".bucket", l.Bucket, 1, maxBucket)
			v.checkRange(at+"."+name+".perHour", l.PerHour, 1, maxPerHour)
		}
	}
	limit("readLimit", m.ReadLimit)
	limit("writeLimit", m.WriteLimit)
	limit("deleteLimit", m.DeleteLimit)
}
