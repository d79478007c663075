package instances

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"packetwalk.dev/internal/azure/aci"
)

// maxEvents is how many events a group, or a container, keeps.
const maxEvents = 50

// addEvent adds an event to a list, or counts one that is there.
func addEvent(list []aci.Event, kind, name, message string) []aci.Event {
	now := time.Now().UTC()
	for i := range list {
		if e := &list[i]; e.Name == name && e.Message == message {
			e.Count, e.LastTimestamp = e.Count+1, now
			return list
		}
	}
	list = append(list, aci.Event{Count: 1, FirstTimestamp: now, LastTimestamp: now, Name: name, Message: message, Type: kind})
	return list[max(0, len(list)-maxEvents):]
}

// newView returns the view of a container that nothing is known of.
func newView() aci.ContainerView {
	return aci.ContainerView{CurrentState: aci.ContainerState{State: aci.StateWaiting}, Events: []aci.Event{}}
}

// viewOf returns a container's view by the kubelet's status of it, after the view before.
func viewOf(was aci.ContainerView, s *corev1.ContainerStatus) aci.ContainerView {
	is := aci.ContainerView{
		RestartCount: int(s.RestartCount), CurrentState: stateOf(s.State), Ready: s.Ready, Events: slices.Clone(was.Events),
	}
	if previous := s.LastTerminationState; previous.Terminated != nil {
		state := stateOf(previous)
		is.PreviousState = &state
	}
	if w := s.State.Waiting; w != nil && is.PreviousState != nil {
		// Azure tells how a container ended until it runs again, Kubernetes that it waits to be started.
		is.CurrentState, is.PreviousState = *is.PreviousState, was.PreviousState
	}
	for _, e := range news(was.CurrentState, is.CurrentState) {
		is.Events = addEvent(is.Events, e.Type, e.Name, e.Message)
	}
	return is
}

// news returns the events of a container that came from one state to another. A kubelet without an API server publishes no events.
func news(was, is aci.ContainerState) []aci.Event {
	switch {
	case is.State == was.State && is.StartTime.Equal(was.StartTime) && is.DetailStatus == was.DetailStatus && is.Message == was.Message:
		return nil
	case is.State == aci.StateRunning:
		return []aci.Event{{Type: "Normal", Name: "Started", Message: "Started container"}}
	case is.State == aci.StateTerminated && *is.ExitCode == codeNotStarted:
		return []aci.Event{{Type: "Warning", Name: "Failed", Message: is.Message}}
	case is.State == aci.StateTerminated:
		return []aci.Event{{Type: "Normal", Name: "Terminated", Message: fmt.Sprintf("The container ended with status %d", *is.ExitCode)}}
	case is.Message != "":
		return []aci.Event{{Type: "Warning", Name: "Failed", Message: is.DetailStatus + ": " + is.Message}}
	}
	return nil
}

// codeNotStarted is the exit code of a container that did not start, Azure's and a kubelet's.
const codeNotStarted = 128

func stateOf(s corev1.ContainerState) aci.ContainerState {
	switch {
	case s.Running != nil:
		return aci.ContainerState{State: aci.StateRunning, StartTime: s.Running.StartedAt.Time}
	case s.Terminated != nil:
		t := s.Terminated
		code := int(t.ExitCode)
		return aci.ContainerState{State: aci.StateTerminated, StartTime: t.StartedAt.Time, FinishTime: t.FinishedAt.Time, ExitCode: &code,
			DetailStatus: t.Reason, Message: t.Message}
	case s.Waiting != nil:
		return aci.ContainerState{State: aci.StateWaiting, DetailStatus: s.Waiting.Reason, Message: s.Waiting.Message}
	}
	return aci.ContainerState{State: aci.StateWaiting}
}

// again reports whether a container that exited with code is restarted.
func again(p aci.RestartPolicy, code int) bool {
	return p == aci.RestartAlways || p == aci.RestartOnFailure && code != 0
}

// view returns the group as it is now.
func (g *group) view() aci.ContainerGroup {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.spec
	p := &v.Properties
	p.ProvisioningState = g.state
	if p.IPAddress != nil {
		ip := *p.IPAddress
		ip.IP, ip.Ports = g.ip, slices.Clone(ip.Ports)
		p.IPAddress = &ip
	}
	p.Containers = slices.Clone(p.Containers)
	for i := range g.views {
		view := g.views[i]
		view.Events = append([]aci.Event{}, view.Events...)
		p.Containers[i].Properties.InstanceView = &view
	}
	p.InstanceView = &aci.GroupView{State: g.stateLocked(), Events: append([]aci.Event{}, g.events...)}
	return v
}

// stateLocked returns the group's state by its containers'. Held: mu.
func (g *group) stateLocked() string {
	if g.state != aci.ProvisioningSucceeded {
		return aci.GroupPending
	}
	state := aci.GroupSucceeded
	for i := range g.views {
		v := &g.views[i]
		if v.CurrentState.State == aci.StateWaiting && v.RestartCount == 0 {
			return aci.GroupPending
		}
		code := 0
		if v.CurrentState.ExitCode != nil {
			code = *v.CurrentState.ExitCode
		}
		switch {
		case v.CurrentState.State != aci.StateTerminated || again(g.spec.Properties.RestartPolicy, code):
			state = aci.GroupRunning
		case code != 0 && state == aci.GroupSucceeded:
			state = aci.GroupFailed
		}
	}
	return state
}

// same reports whether two views of a container differ at most in their events.
func same(a, b aci.ContainerView) bool {
	a.Events, b.Events = nil, nil
	return reflect.DeepEqual(a, b)
}
