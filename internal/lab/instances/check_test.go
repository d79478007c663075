package instances

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"packetwalk.dev/internal/azure/aci"
)

// TestProbesRefused: a probe's numbers are times and counts; with others its container would be probed without a pause, or never.
func TestProbesRefused(t *testing.T) {
	get := &aci.HTTPProbe{Port: 80}
	for path, probe := range map[string]aci.Probe{
		"must have one of exec and httpGet":         {},
		"has no command or port":                    {Exec: &aci.ExecProbe{}},
		"livenessProbe.initialDelaySeconds of":      {HTTPGet: get, InitialDelaySeconds: -1},
		"livenessProbe.periodSeconds of":            {HTTPGet: get, PeriodSeconds: -1},
		"livenessProbe.timeoutSeconds of":           {HTTPGet: get, TimeoutSeconds: -1},
		"livenessProbe.failureThreshold of":         {HTTPGet: get, FailureThreshold: -1},
		"livenessProbe.successThreshold of":         {HTTPGet: get, SuccessThreshold: -1},
		"is 10000000000; it can be 0 to 2147483647": {HTTPGet: get, PeriodSeconds: 1e10}, // as nanoseconds negative
		"": {HTTPGet: get, PeriodSeconds: 1, TimeoutSeconds: maxProbe},
	} {
		g := &aci.ContainerGroup{Name: "g"}
		c := &aci.Container{Name: "c", Properties: aci.ContainerProperties{LivenessProbe: &probe}}
		refused(t, checkProbes(g, c), path)
		c.Properties.LivenessProbe, c.Properties.ReadinessProbe = nil, &probe
		refused(t, checkProbes(g, c), strings.Replace(path, "liveness", "readiness", 1))
	}
}

func refused(t *testing.T, err error, because string) {
	t.Helper()
	var e *aci.Error
	if because == "" && err == nil || because != "" && errors.As(err, &e) && e.Code == "InvalidContainerProbe" &&
		e.Status == http.StatusBadRequest && strings.Contains(e.Message, because) {
		return
	}
	t.Errorf("error %v, want one with %q", err, because)
}

// TestPutRefused: what Azure would refuse is refused, and leaves nothing.
func TestPutRefused(t *testing.T) {
	s, p := testGroups(t, 10)
	for what, change := range map[string]func(*aci.ContainerGroup){
		"InvalidContainerGroupName":    func(g *aci.ContainerGroup) { g.Name = strings.Repeat("a", 64) },
		"InvalidContainers":            func(g *aci.ContainerGroup) { g.Properties.Containers = nil },
		"InvalidOsType":                func(g *aci.ContainerGroup) { g.Properties.OSType = "Windows" },
		"SubnetNotFound":               func(g *aci.ContainerGroup) { g.Properties.SubnetIDs[0].ID += "x" },
		"InvalidSubnet":                func(g *aci.ContainerGroup) { g.Properties.IPAddress = nil },
		"InaccessibleImage":            func(g *aci.ContainerGroup) { g.Properties.Containers[0].Properties.Image = "no/such" },
		"ResourceRequestsNotSpecified": func(g *aci.ContainerGroup) { g.Properties.Containers[0].Properties.Resources.Requests.CPU = 0 },
		"VolumeNotFound": func(g *aci.ContainerGroup) {
			g.Properties.Containers[0].Properties.VolumeMounts = []aci.VolumeMount{{Name: "v", MountPath: "/v"}}
		},
		"InvalidContainerProbe": func(g *aci.ContainerGroup) { g.Properties.Containers[0].Properties.LivenessProbe = &aci.Probe{} },
		"InvalidRestartPolicy":  func(g *aci.ContainerGroup) { g.Properties.RestartPolicy = "Sometimes" },
		"InvalidDnsConfig": func(g *aci.ContainerGroup) {
			g.Properties.DNSConfig = &aci.DNSConfig{NameServers: []string{"dns.example"}}
		},
		"InvalidEnvironmentVariable": func(g *aci.ContainerGroup) {
			g.Properties.Containers[0].Properties.Environment = []aci.Variable{{Value: "x"}}
		},
		"InvalidVolumeMount": func(g *aci.ContainerGroup) {
			g.Properties.Volumes = []aci.Volume{{Name: "v", EmptyDir: &struct{}{}}}
			g.Properties.Containers[0].Properties.VolumeMounts = []aci.VolumeMount{{Name: "v", MountPath: "/v"}, {Name: "v", MountPath: "/v"}}
		},
	} {
		t.Run(what, func(t *testing.T) {
			g := testSpec("g", "1")
			g.Properties.IPAddress = &aci.IPAddress{Type: aci.Private}
			g.Properties.Containers = []aci.Container{{Name: "c", Properties: aci.ContainerProperties{
				Image: "busybox", Resources: aci.Resources{Requests: aci.ResourceAmounts{CPU: 1, MemoryInGB: 1}},
			}}}
			change(&g)
			var e *aci.Error
			if _, err := s.Put(t.Context(), g); !errors.As(err, &e) || e.Code != what || e.Status != http.StatusBadRequest {
				t.Error(err)
			}
		})
	}
	if all, _ := s.List(t.Context()); len(all) != 0 || len(p.nics()) != 0 {
		t.Errorf("there are %+v, %v", all, p.nics())
	}
}

// TestCheckResources: amounts that no region has are refused, before they overflow an int64.
func TestCheckResources(t *testing.T) {
	s, _ := testGroups(t, 1)
	for name, tt := range map[string]struct {
		requests []aci.ResourceAmounts
		limits   *aci.ResourceAmounts // of each
		code     string
	}{
		"largest":               {requests: []aci.ResourceAmounts{{CPU: 30.5, MemoryInGB: 239}, {CPU: 0.5, MemoryInGB: 1}}},
		"with limits":           {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 1}}, &aci.ResourceAmounts{CPU: 31, MemoryInGB: 240}, ""},
		"without requests":      {[]aci.ResourceAmounts{{CPU: 1}}, nil, "ResourceRequestsNotSpecified"},
		"more bytes than int64": {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 9.3e9}}, nil, "ServiceUnavailable"},
		"too many cores":        {[]aci.ResourceAmounts{{CPU: 31.5, MemoryInGB: 1}}, nil, "ServiceUnavailable"},
		"too much together":     {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 200}, {CPU: 1, MemoryInGB: 41}}, nil, "ServiceUnavailable"},
		"infinite together": {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 1.7e308}, {CPU: 1, MemoryInGB: 1.7e308}}, nil,
			"ServiceUnavailable"},
		"limit of too many cores": {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 1}}, &aci.ResourceAmounts{CPU: 1e17}, "ServiceUnavailable"},
		"limit of too much memory": {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 1}}, &aci.ResourceAmounts{MemoryInGB: 9.3e9},
			"ServiceUnavailable"},
		"limit below request": {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 1}}, &aci.ResourceAmounts{CPU: 1, MemoryInGB: 0.5},
			"ResourceLimitsLessThanRequests"},
		"negative limit": {[]aci.ResourceAmounts{{CPU: 1, MemoryInGB: 1}}, &aci.ResourceAmounts{CPU: -1}, "ResourceLimitsLessThanRequests"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &aci.ContainerGroup{Name: "g"}
			for _, r := range tt.requests {
				g.Properties.Containers = append(g.Properties.Containers, aci.Container{Name: "c",
					Properties: aci.ContainerProperties{Resources: aci.Resources{Requests: r, Limits: tt.limits}}})
			}
			var e *aci.Error
			err := s.checkResources(g)
			if errors.As(err, &e); tt.code == "" && err != nil || tt.code != "" && (e == nil || e.Code != tt.code) {
				t.Errorf("%v, want %q", err, tt.code)
			}
		})
	}
}
