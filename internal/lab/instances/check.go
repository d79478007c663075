package instances

import (
	"cmp"
	"context"
	"math"
	"net/netip"
	"strings"
	"time"

	"packetwalk.dev/internal/azure/aci"
)

// maxContainers is how many containers a group has at most ("Resource availability & quota limits for ACI", learn.microsoft.com).
const maxContainers = 60

// check refuses a group that Azure would, and fills in what it would.
func (s *Groups) check(ctx context.Context, g *aci.ContainerGroup) error {
	p := &g.Properties
	if err := g.Check(); err != nil {
		return err
	}
	if len(p.Containers) == 0 || len(p.Containers) > maxContainers {
		return aci.BadRequest("InvalidContainers",
			"The container group '%s' has %d containers; it can have 1 to %d.", g.Name, len(p.Containers), maxContainers)
	}
	if p.OSType != "" && !strings.EqualFold(p.OSType, "Linux") {
		return aci.BadRequest("InvalidOsType", "The OS type '%s' is not available here; there is Linux.", p.OSType)
	}
	if len(p.SubnetIDs) != 1 || p.IPAddress == nil || p.IPAddress.Type != aci.Private {
		return aci.BadRequest("InvalidSubnet", "The container group '%s' needs one subnet, and an address of type %s.", g.Name, aci.Private)
	}
	p.RestartPolicy = cmp.Or(p.RestartPolicy, aci.RestartAlways)
	if err := s.checkSubnet(p.SubnetIDs[0].ID); err != nil {
		return err
	}
	if err := checkPod(g); err != nil {
		return err
	}
	if err := s.checkResources(g); err != nil {
		return err
	}
	for i := range p.Containers {
		if err := s.checkContainer(ctx, g, &p.Containers[i]); err != nil {
			return err
		}
	}
	p.OSType, p.SKU = "Linux", cmp.Or(p.SKU, "Standard")
	g.Type, g.Location = aci.Type, cmp.Or(g.Location, s.cfg.Location)
	g.ID = "/subscriptions/" + s.cfg.Subscription + "/resourceGroups/" + s.cfg.ResourceGroup + "/providers/" + aci.Type + "/" + g.Name
	return nil
}

// maxNameServers is how many a pod has at most (k8s.io/kubernetes, pkg/apis/core/validation).
const maxNameServers = 3

// checkPod refuses what the kubelet would refuse. Without an API server it reports that only in its log.
func checkPod(g *aci.ContainerGroup) error {
	p := &g.Properties
	switch p.RestartPolicy {
	case aci.RestartAlways, aci.RestartOnFailure, aci.RestartNever:
	default:
		return aci.BadRequest("InvalidRestartPolicy", "The restart policy '%s' of container group '%s' is none of Always, OnFailure and Never.",
			p.RestartPolicy, g.Name)
	}
	if d := p.DNSConfig; d != nil {
		if len(d.NameServers) > maxNameServers {
			return aci.BadRequest("InvalidDnsConfig", "The container group '%s' has %d name servers; it can have %d.", g.Name, len(d.NameServers),
				maxNameServers)
		}
		for _, server := range d.NameServers {
			if _, err := netip.ParseAddr(server); err != nil {
				return aci.BadRequest("InvalidDnsConfig", "The name server '%s' of container group '%s' is no IP address.", server, g.Name)
			}
		}
	}
	for i := range p.Containers {
		c := &p.Containers[i]
		paths := map[string]bool{}
		for _, m := range c.Properties.VolumeMounts {
			if paths[m.MountPath] {
				return aci.BadRequest("InvalidVolumeMount", "The container '%s' in container group '%s' has two mounts at '%s'.", c.Name, g.Name,
					m.MountPath)
			}
			paths[m.MountPath] = true
		}
		for _, v := range c.Properties.Environment {
			if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") {
				return aci.BadRequest("InvalidEnvironmentVariable", "The environment variable '%s' of container '%s' in container group '%s' has no valid name.",
					v.Name, c.Name, g.Name)
			}
		}
	}
	return nil
}

func (s *Groups) checkSubnet(id string) error {
	network, subnet, ok := parseSubnet(id)
	n, _ := s.cfg.Network.Snapshot()
	if ok {
		_, ok = n.Subnet(network, subnet)
	}
	if !ok {
		return aci.BadRequest("SubnetNotFound", "The subnet '%s' could not be found.", id)
	}
	return nil
}

// parseSubnet takes a subnet's id apart: …/virtualNetworks/NAME/subnets/NAME.
func parseSubnet(id string) (network, subnet string, ok bool) {
	_, rest, ok := strings.Cut(id, "/virtualNetworks/")
	if !ok {
		return "", "", false
	}
	return strings.Cut(rest, "/subnets/")
}

// accessTime is how long an image is waited for before its group is made; a pull that takes longer goes on.
const accessTime = 5 * time.Second

func (s *Groups) checkContainer(ctx context.Context, g *aci.ContainerGroup, c *aci.Container) error {
	ctx, cancel := context.WithTimeout(ctx, accessTime)
	defer cancel()
	if err := s.cfg.Machines.HasImage(ctx, c.Properties.Image); err != nil && ctx.Err() == nil {
		return aci.BadRequest("InaccessibleImage",
			"The image '%s' in container group '%s' is not accessible: %v", c.Properties.Image, g.Name, err)
	}
	return checkProbes(g, c)
}

// The most that a container group has in any region, in cores and gigabytes ("Resource availability & quota limits for ACI",
// learn.microsoft.com).
const (
	maxCores     = 31
	maxGigabytes = 240
)

// checkResources checks what the containers request, alone and together, and their limits.
func (s *Groups) checkResources(g *aci.ContainerGroup) error {
	var all aci.ResourceAmounts
	for i := range g.Properties.Containers {
		c := &g.Properties.Containers[i]
		r, l := c.Properties.Resources.Requests, c.Properties.Resources.Limits
		if r.CPU <= 0 || r.MemoryInGB <= 0 {
			return aci.BadRequest("ResourceRequestsNotSpecified",
				"The resource requests are not specified or invalid in container '%s' of container group '%s'.", c.Name, g.Name)
		}
		all.CPU, all.MemoryInGB = all.CPU+r.CPU, all.MemoryInGB+r.MemoryInGB
		if l == nil {
			continue
		}
		if l.CPU != 0 && l.CPU < r.CPU || l.MemoryInGB != 0 && l.MemoryInGB < r.MemoryInGB {
			return aci.BadRequest("ResourceLimitsLessThanRequests",
				"The limits of container '%s' in container group '%s' must be greater than or equal to its requests.", c.Name, g.Name)
		}
		if l.CPU > maxCores || l.MemoryInGB > maxGigabytes {
			return s.unavailable(*l)
		}
	}
	if all.CPU > maxCores || all.MemoryInGB > maxGigabytes {
		return s.unavailable(all)
	}
	return nil
}

// unavailable returns Azure's error for more than a region has.
func (s *Groups) unavailable(a aci.ResourceAmounts) error {
	return aci.BadRequest("ServiceUnavailable",
		"The requested resource is not available in the location '%s' at this moment. Please retry with a different resource request or in "+
			"another location. Resource requested: '%v' CPU '%v' GB memory 'Linux' OS", s.cfg.Location, a.CPU, a.MemoryInGB)
}

// maxProbe is the most that a number of a probe is, as in Kubernetes: as seconds it is a time.Duration.
const maxProbe = math.MaxInt32

func checkProbes(g *aci.ContainerGroup, c *aci.Container) error {
	for i, p := range []*aci.Probe{c.Properties.LivenessProbe, c.Properties.ReadinessProbe} {
		if p == nil {
			continue
		}
		if (p.Exec == nil) == (p.HTTPGet == nil) {
			return aci.BadRequest("InvalidContainerProbe",
				"A probe of container '%s' in container group '%s' must have one of exec and httpGet.", c.Name, g.Name)
		}
		if p.Exec != nil && len(p.Exec.Command) == 0 || p.HTTPGet != nil && p.HTTPGet.Port == 0 {
			return aci.BadRequest("InvalidContainerProbe",
				"A probe of container '%s' in container group '%s' has no command or port.", c.Name, g.Name)
		}
		if i == 0 && p.SuccessThreshold > 1 {
			return aci.BadRequest("InvalidContainerProbe", "The livenessProbe.successThreshold of container '%s' in container group '%s' can be 1 only.",
				c.Name, g.Name)
		}
		for _, field := range []struct {
			name  string
			value int
		}{
			{"initialDelaySeconds", p.InitialDelaySeconds}, {"periodSeconds", p.PeriodSeconds}, {"timeoutSeconds", p.TimeoutSeconds},
			{"failureThreshold", p.FailureThreshold}, {"successThreshold", p.SuccessThreshold},
		} {
			if field.value < 0 || field.value > maxProbe {
				return aci.BadRequest("InvalidContainerProbe", "The %s.%s of container '%s' in container group '%s' is %d; it can be 0 to %d.",
					[]string{"livenessProbe", "readinessProbe"}[i], field.name, c.Name, g.Name, field.value, maxProbe)
			}
		}
	}
	return nil
}
