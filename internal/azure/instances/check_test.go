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
