package instances

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"packetwalk.dev/internal/azure/aci"
)

// TestPod: what a group says is what its machine's kubelet is told.
func TestPod(t *testing.T) {
	s, _ := testGroups(t, 10)
	spec := testSpec("web", "1")
	spec.Properties.RestartPolicy = aci.RestartOnFailure
	spec.Properties.DNSConfig = &aci.DNSConfig{NameServers: []string{"10.0.0.10"}, SearchDomains: "a.b b", Options: "ndots:5 rotate"}
	spec.Properties.Volumes = []aci.Volume{{Name: "conf", Secret: map[string]string{"a": "b25l"}}, {Name: "data", EmptyDir: &struct{}{}}}
	spec.Properties.Containers = []aci.Container{{Name: "c", Properties: aci.ContainerProperties{
		Image: "nginx", Command: []string{"sh", "-c", "echo $(HOME)"},
		Environment:   []aci.Variable{{Name: "A", Value: "$(B)"}, {Name: "S", SecureValue: "secret"}},
		Resources:     aci.Resources{Limits: &aci.ResourceAmounts{CPU: 0.5, MemoryInGB: 1.5}},
		VolumeMounts:  []aci.VolumeMount{{Name: "conf", MountPath: "/conf"}, {Name: "data", MountPath: "/data"}},
		LivenessProbe: &aci.Probe{HTTPGet: &aci.HTTPProbe{Port: 80, Path: "/live", Scheme: "https"}, PeriodSeconds: 2},
	}}}
	got, err := json.MarshalIndent(s.newGroup(spec).pod().Spec, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
 "volumes": [
  {
   "name": "conf",
   "hostPath": {
    "path": "/var/lib/packetwalk-volumes/conf",
    "type": "Directory"
   }
  },
  {
   "name": "data",
   "emptyDir": {}
  }
 ],
 "containers": [
  {
   "name": "c",
   "image": "nginx",
   "command": [
    "sh",
    "-c",
    "echo $$(HOME)"
   ],
   "env": [
    {
     "name": "A",
     "value": "$$(B)"
    },
    {
     "name": "S",
     "value": "secret"
    }
   ],
   "resources": {
    "limits": {
     "cpu": "500m",
     "memory": "1500M"
    },
    "requests": {
     "cpu": "0",
     "memory": "0"
    }
   },
   "volumeMounts": [
    {
     "name": "conf",
     "readOnly": true,
     "mountPath": "/conf"
    },
    {
     "name": "data",
     "mountPath": "/data"
    }
   ],
   "livenessProbe": {
    "httpGet": {
     "path": "/live",
     "port": 80,
     "scheme": "HTTPS"
    },
    "periodSeconds": 2,
    "terminationGracePeriodSeconds": 10
   },
   "imagePullPolicy": "IfNotPresent"
  }
 ],
 "restartPolicy": "OnFailure",
 "terminationGracePeriodSeconds": 86400,
 "dnsPolicy": "None",
 "automountServiceAccountToken": false,
 "hostname": "sandboxhost-748076420210162913",
 "dnsConfig": {
  "nameservers": [
   "10.0.0.10"
  ],
  "searches": [
   "a.b",
   "b"
  ],
  "options": [
   {
    "name": "ndots",
    "value": "5"
   },
   {
    "name": "rotate"
   }
  ]
 },
 "enableServiceLinks": false
}`
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("pod (-want +got):\n%s", d)
	}
}

// TestView: a container's view follows the kubelet's status, and has an event for each change.
func TestView(t *testing.T) {
	at := func(seconds int) metav1.Time { return metav1.NewTime(time.Unix(int64(seconds), 0)) }
	terminated := corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error", StartedAt: at(1), FinishedAt: at(2)}
	ended := corev1.ContainerState{Terminated: &terminated}
	notStarted := corev1.ContainerStateTerminated{ExitCode: codeNotStarted, Reason: "StartError", Message: "no such file"}
	steps := []struct {
		status       corev1.ContainerStatus
		state, event string
		code         int
		previous     bool
	}{
		{corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}},
			aci.StateWaiting, "", 0, false},
		{corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull", Message: "no"}}},
			aci.StateWaiting, "ErrImagePull: no", 0, false},
		{corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(1)}}},
			aci.StateRunning, "Started container", 0, false},
		{corev1.ContainerStatus{State: ended}, aci.StateTerminated, "The container ended with status 3", 3, false},
		{corev1.ContainerStatus{LastTerminationState: ended,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off"}}},
			aci.StateTerminated, "The container ended with status 3", 3, false},
		{corev1.ContainerStatus{LastTerminationState: ended, RestartCount: 1,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(3)}}},
			aci.StateRunning, "Started container", 0, true},
		{corev1.ContainerStatus{RestartCount: 1, State: corev1.ContainerState{Terminated: &notStarted}},
			aci.StateTerminated, "no such file", codeNotStarted, false},
	}
	view := newView()
	for i, step := range steps {
		view = viewOf(view, &step.status)
		code := 0
		if view.CurrentState.ExitCode != nil {
			code = *view.CurrentState.ExitCode
		}
		newest := latest(view.Events)
		if view.CurrentState.State != step.state || code != step.code || (view.PreviousState != nil) != step.previous || newest != step.event {
			t.Errorf("step %d: %+v, the newest event is %q", i, view, newest)
		}
	}
}

// latest returns the message of the event that happened last.
func latest(events []aci.Event) (message string) {
	var at time.Time
	for _, e := range events {
		if e.LastTimestamp.After(at) {
			at, message = e.LastTimestamp, e.Message
		}
	}
	return message
}
