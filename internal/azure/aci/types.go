package aci

import (
	"net/netip"
	"time"
)

// Type and APIVersion are the resource's.
const (
	Type       = "Microsoft.ContainerInstance/containerGroups"
	APIVersion = "2023-05-01"
)

// ContainerGroup is a set of containers that share a network namespace, an address and a life.
type ContainerGroup struct {
	ID         string            `json:"id,omitempty"`
	Name       string            `json:"name"`
	Type       string            `json:"type,omitempty"`
	Location   string            `json:"location"`
	Tags       map[string]string `json:"tags,omitempty"`
	Properties GroupProperties   `json:"properties"`
}

// The states of GroupProperties.ProvisioningState.
const (
	ProvisioningPending   = "Pending"
	ProvisioningCreating  = "Creating"
	ProvisioningSucceeded = "Succeeded"
	ProvisioningFailed    = "Failed"
)

// GroupProperties are what a group is made of, and how it is.
type GroupProperties struct {
	ProvisioningState string        `json:"provisioningState,omitempty"`
	SKU               string        `json:"sku,omitempty"`
	OSType            string        `json:"osType"`
	RestartPolicy     RestartPolicy `json:"restartPolicy,omitempty"`
	Containers        []Container   `json:"containers"`
	IPAddress         *IPAddress    `json:"ipAddress,omitempty"`
	SubnetIDs         []SubnetID    `json:"subnetIds,omitempty"`
	DNSConfig         *DNSConfig    `json:"dnsConfig,omitempty"`
	Volumes           []Volume      `json:"volumes,omitempty"`
	Extensions        []Extension   `json:"extensions,omitempty"`
	InstanceView      *GroupView    `json:"instanceView,omitempty"` // not in lists
}

// RestartPolicy says which containers that ended are started again.
type RestartPolicy string

// The restart policies.
const (
	RestartAlways    RestartPolicy = "Always"
	RestartOnFailure RestartPolicy = "OnFailure"
	RestartNever     RestartPolicy = "Never"
)

// SubnetID names the subnet that the group's address is of.
type SubnetID struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// IPAddress is the group's address.
type IPAddress struct {
	Type  string     `json:"type"` // "Private": of a subnet
	IP    netip.Addr `json:"ip,omitzero"`
	Ports []Port     `json:"ports"`
}

// Private is the type of an address of a subnet.
const Private = "Private"

// Port is one that the group, or a container of it, listens on.
type Port struct {
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol,omitempty"` // "TCP" or "UDP"
}

// DNSConfig is what the containers have in /etc/resolv.conf; the two lists with blanks in between.
type DNSConfig struct {
	NameServers   []string `json:"nameServers"`
	SearchDomains string   `json:"searchDomains,omitempty"`
	Options       string   `json:"options,omitempty"`
}

// Extension is something of Azure's beside the group's containers.
type Extension struct {
	Name       string              `json:"name"`
	Properties ExtensionProperties `json:"properties"`
}

// ExtensionKubeProxy is the extension that keeps a cluster's Services in the group's own namespace, as kube-proxy does on a node.
const ExtensionKubeProxy = "kube-proxy"

// ExtensionProperties say which extension it is and what it needs. The settings are kube-proxy's.
type ExtensionProperties struct {
	Type              string            `json:"extensionType"`
	Version           string            `json:"version,omitempty"`
	Settings          map[string]string `json:"settings,omitempty"`
	ProtectedSettings map[string]string `json:"protectedSettings,omitempty"` // not in answers
}

// Settings of the kube-proxy extension. The rule set is this lab's own setting.
const (
	SettingClusterCIDR = "clusterCidr"
	SettingKubeVersion = "kubeVersion"
	SettingProxyRules  = "proxyRules"
	SettingKubeConfig  = "kubeConfig" // protected: base64 of a kubeconfig
	SettingNodeName    = "nodeName"   // this lab's own: the node whose pod the group is
)

// Volume is a directory that containers mount; exactly one of the others is there.
type Volume struct {
	Name     string            `json:"name"`
	EmptyDir *struct{}         `json:"emptyDir,omitempty"`
	Secret   map[string]string `json:"secret,omitempty"` // file names and contents, base64; not in answers
}

// Container is one of a group's.
type Container struct {
	Name       string              `json:"name"`
	Properties ContainerProperties `json:"properties"`
}

// ContainerProperties are what a container is made of, and how it is.
type ContainerProperties struct {
	Image          string         `json:"image"`
	Command        []string       `json:"command,omitempty"` // instead of the image's entry point and arguments
	Ports          []Port         `json:"ports"`
	Environment    []Variable     `json:"environmentVariables"`
	Resources      Resources      `json:"resources"`
	VolumeMounts   []VolumeMount  `json:"volumeMounts,omitempty"`
	LivenessProbe  *Probe         `json:"livenessProbe,omitempty"`
	ReadinessProbe *Probe         `json:"readinessProbe,omitempty"`
	InstanceView   *ContainerView `json:"instanceView,omitempty"` // not in lists
}

// Variable is one of a container's environment.
type Variable struct {
	Name        string `json:"name"`
	Value       string `json:"value,omitempty"`
	SecureValue string `json:"secureValue,omitempty"` // not in answers
}

// Resources are what a container asks for, and the most that it gets.
type Resources struct {
	Requests ResourceAmounts  `json:"requests"`
	Limits   *ResourceAmounts `json:"limits,omitempty"`
}

// ResourceAmounts are cores and gigabytes.
type ResourceAmounts struct {
	CPU        float64 `json:"cpu"`
	MemoryInGB float64 `json:"memoryInGB"`
}

// VolumeMount is where a container has a volume.
type VolumeMount struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

// Probe is how a container's health is found out; exactly one of Exec and HTTPGet is there.
type Probe struct {
	Exec                *ExecProbe `json:"exec,omitempty"`
	HTTPGet             *HTTPProbe `json:"httpGet,omitempty"`
	InitialDelaySeconds int        `json:"initialDelaySeconds,omitempty"`
	PeriodSeconds       int        `json:"periodSeconds,omitempty"`    // default 10
	FailureThreshold    int        `json:"failureThreshold,omitempty"` // default 3
	SuccessThreshold    int        `json:"successThreshold,omitempty"` // default 1
	TimeoutSeconds      int        `json:"timeoutSeconds,omitempty"`   // default 1
}

// ExecProbe runs a command in the container; status 0 is well.
type ExecProbe struct {
	Command []string `json:"command"`
}

// HTTPProbe asks the container; a status from 200 to 399 is well.
type HTTPProbe struct {
	Path   string `json:"path,omitempty"`
	Port   uint16 `json:"port"`
	Scheme string `json:"scheme,omitempty"` // "http" (default) or "https"
}

// The states of a group's view.
const (
	GroupPending   = "Pending"
	GroupRunning   = "Running"
	GroupSucceeded = "Succeeded" // all containers ended with 0 and none is started again
	GroupFailed    = "Failed"
)

// GroupView is how a group is.
type GroupView struct {
	State  string  `json:"state"`
	Events []Event `json:"events"`
}

// The states of a container.
const (
	StateWaiting    = "Waiting"
	StateRunning    = "Running"
	StateTerminated = "Terminated"
)

// ContainerView is how a container is. Ready is this lab's own: in Azure the group's address takes traffic or not by it.
type ContainerView struct {
	RestartCount  int             `json:"restartCount"`
	CurrentState  ContainerState  `json:"currentState"`
	PreviousState *ContainerState `json:"previousState,omitempty"`
	Events        []Event         `json:"events"`
	Ready         bool            `json:"ready"`
}

// ContainerState is a container's at one time.
type ContainerState struct {
	State        string    `json:"state"`
	StartTime    time.Time `json:"startTime,omitzero"`
	ExitCode     *int      `json:"exitCode,omitempty"`
	FinishTime   time.Time `json:"finishTime,omitzero"`
	DetailStatus string    `json:"detailStatus,omitempty"` // the reason of a wait or an end
	Message      string    `json:"message,omitempty"`      // more about it; this lab's own
}

// Event is something that happened, the last time at LastTimestamp.
type Event struct {
	Count          int       `json:"count"`
	FirstTimestamp time.Time `json:"firstTimestamp"`
	LastTimestamp  time.Time `json:"lastTimestamp"`
	Name           string    `json:"name"`
	Message        string    `json:"message"`
	Type           string    `json:"type"` // "Normal" or "Warning"
}

// Public returns the group without what Azure's answers leave out: secrets.
func (g ContainerGroup) Public() ContainerGroup {
	volumes := make([]Volume, len(g.Properties.Volumes))
	for i, v := range g.Properties.Volumes {
		volumes[i] = v
		if v.Secret != nil {
			volumes[i].Secret = map[string]string{}
		}
	}
	if len(volumes) > 0 {
		g.Properties.Volumes = volumes
	}
	extensions := make([]Extension, len(g.Properties.Extensions))
	for i, e := range g.Properties.Extensions {
		extensions[i] = e
		extensions[i].Properties.ProtectedSettings = nil
	}
	if len(extensions) > 0 {
		g.Properties.Extensions = extensions
	}
	containers := make([]Container, len(g.Properties.Containers))
	for i, c := range g.Properties.Containers {
		environment := make([]Variable, len(c.Properties.Environment))
		for j, v := range c.Properties.Environment {
			environment[j] = Variable{Name: v.Name, Value: v.Value}
		}
		c.Properties.Environment = environment
		containers[i] = c
	}
	g.Properties.Containers = containers
	return g
}

// Listed returns the group as lists have it: without views.
func (g ContainerGroup) Listed() ContainerGroup {
	g = g.Public()
	g.Properties.InstanceView = nil
	for i := range g.Properties.Containers {
		g.Properties.Containers[i].Properties.InstanceView = nil
	}
	return g
}
