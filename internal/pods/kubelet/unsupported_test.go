package kubelet

import (
	"context"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Fields that have no effect are told of, each once in a pod's life, also when a kubelet takes the pod over.
func TestFieldsWithoutEffectAreToldOf(t *testing.T) {
	b := newBenchWith(t, func(_ *bench, c *Config) {
		c.MountMemory = func(string, int64) error { return nil }
		c.Unbounded = []string{"memory is not limited: no group"}
	})
	b.create(testPod("plain"))
	b.await("plain", "ready", ready)
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.HostIPC, p.Spec.ShareProcessNamespace = true, new(true)
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount)}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "fast", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
			{Name: "slow", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, Protocol: corev1.ProtocolTCP},
			{ContainerPort: 81}}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("64Mi"), corev1.ResourceCPU: quantity("100m")}
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: quantity("1Mi")}
	}))
	b.await("web", "ready", ready)
	want := []string{
		"hostIPC has no effect in the lab: each container has an IPC namespace of its own",
		"hostPort (8080/tcp) has no effect in the lab: no plugin of the node's CNI configuration takes portMappings; " +
			"use a Service of type NodePort, or hostNetwork",
		"resources.limits (container app: cpu 100m, memory 64Mi) has no effect in the lab: memory is not limited: no group",
		"securityContext.procMount (container app) has no effect in the lab: what tells of the machine in /proc stays masked",
	}
	if diff := cmp.Diff(want, b.warnings(len(want))); diff != "" {
		t.Error(diff)
	}
	b.stop()
	b.start()
	b.create(testPod("mapped", func(p *corev1.Pod) { // on the node's network a host port is the container's own
		p.Spec.HostNetwork = true
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80}}
		p.Spec.HostIPC = true
	}))
	want = append(want, "hostIPC has no effect in the lab: each container has an IPC namespace of its own")
	slices.Sort(want)
	if diff := cmp.Diff(want, b.warnings(len(want))); diff != "" {
		t.Error(diff)
	}
}

// TestEphemeralContainersAreToldOf: kubectl debug's have fields without effect, too.
func TestEphemeralContainersAreToldOf(t *testing.T) {
	b := newBench(t)
	p := b.create(testPod("web", func(p *corev1.Pod) { p.Spec.HostIPC = true }))
	b.await("web", "ready", ready)
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger",
		Image: "app", SecurityContext: &corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount)}}}}
	if _, err := b.client.CoreV1().Pods("default").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := []string{"hostIPC has no effect in the lab: each container has an IPC namespace of its own",
		"securityContext.procMount (container debugger) has no effect in the lab: what tells of the machine in /proc stays masked"}
	if diff := cmp.Diff(want, b.warnings(2)); diff != "" {
		t.Error(diff)
	}
}

func TestHostPortsAreLeftToAPluginThatMapsThem(t *testing.T) {
	b := newBench(t)
	b.network.maps = true
	b.create(testPod("web", func(p *corev1.Pod) {
		p.Spec.HostIPC = true // something to wait for
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
	}))
	b.await("web", "ready", ready)
	want := []string{"hostIPC has no effect in the lab: each container has an IPC namespace of its own"}
	if diff := cmp.Diff(want, b.warnings(1)); diff != "" {
		t.Error(diff)
	}
}

// warnings waits for at least so many events NotSupported and gives their messages in order; one that counts several times is several.
func (b *bench) warnings(atLeast int) (messages []string) {
	b.t.Helper()
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		list, err := b.client.CoreV1().Events("default").List(context.Background(), metav1.ListOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		messages = nil
		for _, e := range list.Items {
			for range e.Count {
				if e.Reason == "NotSupported" && e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "Pod" &&
					e.InvolvedObject.FieldPath == "" {
					messages = append(messages, e.Message)
				}
			}
		}
		slices.Sort(messages)
		if len(messages) >= atLeast {
			return messages
		}
		if time.Now().After(limit) {
			b.t.Fatalf("events: %q", messages)
		}
	}
}

// elsewhere are the fields whose effect is not the kubelet's: the API server's, the scheduler's, controllers'.
const elsewhere = "NodeSelector DeprecatedServiceAccount AutomountServiceAccountToken NodeName Affinity SchedulerName Tolerations " +
	"PriorityClassName Priority PreemptionPolicy Overhead TopologySpreadConstraints SchedulingGates WorkloadRef OS " +
	// of no system that this runs on, or of a look-up that needs none
	"WindowsOptions SELinuxChangePolicy FSGroupChangePolicy RecursiveReadOnly ImagePullSecrets ImagePullPolicy "

// effective are the fields that have an effect.
const effective = "Volumes InitContainers Containers EphemeralContainers RestartPolicy TerminationGracePeriodSeconds ActiveDeadlineSeconds " +
	"DNSPolicy ServiceAccountName HostNetwork ShareProcessNamespace SecurityContext Hostname Subdomain HostAliases DNSConfig ReadinessGates " +
	"EnableServiceLinks HostPID SetHostnameAsFQDN HostnameOverride Name Image Command Args WorkingDir Ports EnvFrom Env Resources VolumeMounts " +
	"LivenessProbe ReadinessProbe StartupProbe Lifecycle TerminationMessagePath TerminationMessagePolicy Stdin StdinOnce TTY " +
	"RunAsUser RunAsGroup RunAsNonRoot SupplementalGroups SupplementalGroupsPolicy FSGroup Sysctls Capabilities Privileged " +
	"ReadOnlyRootFilesystem AllowPrivilegeEscalation Medium SizeLimit ReadOnly MountPath SubPath SubPathExpr PostStart PreStop StopSignal " +
	"Limits Requests ResizePolicy ProbeHandler InitialDelaySeconds TimeoutSeconds PeriodSeconds SuccessThreshold FailureThreshold HostPort " +
	"ContainerPort Protocol HostIP EphemeralContainerCommon TargetContainerName "

// without are the fields in lacks, and those whose use of another field in it is told of (Claims).
const without = "HostIPC HostUsers RuntimeClassName ResourceClaims SeccompProfile AppArmorProfile SELinuxOptions ProcMount " +
	"RestartPolicyRules VolumeDevices MountPropagation Claims "

// TestEveryFieldIsKnown: a field that the API gets is looked at before it has silently no effect.
func TestEveryFieldIsKnown(t *testing.T) {
	known := strings.Fields(elsewhere + effective + without)
	for _, of := range []any{corev1.PodSpec{}, corev1.Container{}, corev1.PodSecurityContext{}, corev1.SecurityContext{},
		corev1.EmptyDirVolumeSource{}, corev1.VolumeMount{}, corev1.Lifecycle{}, corev1.ResourceRequirements{}, corev1.Probe{},
		corev1.ContainerPort{}, corev1.EphemeralContainer{}} {
		for f := range reflect.TypeOf(of).Fields() {
			if !slices.Contains(known, f.Name) {
				t.Errorf("%T.%s is not known to have an effect, or none", of, f.Name)
			}
		}
	}
}

// TestLacks: each is told of a pod that has it and not of one that has it not, and the page has it.
func TestLacks(t *testing.T) {
	page, err := os.ReadFile("../../../docs/light-nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	type podEdit = func(*corev1.PodSpec)
	seccomp := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost}
	armor := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost}
	context := func(c *corev1.SecurityContext) podEdit {
		return func(s *corev1.PodSpec) { s.Containers[0].SecurityContext = c }
	}
	podContext := func(c *corev1.PodSecurityContext) podEdit { return func(s *corev1.PodSpec) { s.SecurityContext = c } }
	emptyDir := func(e corev1.EmptyDirVolumeSource) podEdit {
		return func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &e}}}
		}
	}
	has := map[string][]podEdit{
		"hostIPC":          {func(s *corev1.PodSpec) { s.HostIPC = true }},
		"hostUsers":        {func(s *corev1.PodSpec) { s.HostUsers = new(false) }},
		"runtimeClassName": {func(s *corev1.PodSpec) { s.RuntimeClassName = new("x") }},
		"resourceClaims":   {func(s *corev1.PodSpec) { s.ResourceClaims = make([]corev1.PodResourceClaim, 1) }},
		"resources of the pod": {func(s *corev1.PodSpec) {
			s.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": quantity("1")}}
		}},
		"emptyDir.medium HugePages": {emptyDir(corev1.EmptyDirVolumeSource{Medium: "HugePages-2Mi"})},
		"securityContext.seccompProfile": {podContext(&corev1.PodSecurityContext{SeccompProfile: seccomp}),
			context(&corev1.SecurityContext{SeccompProfile: seccomp})},
		"securityContext.appArmorProfile": {podContext(&corev1.PodSecurityContext{AppArmorProfile: armor}),
			context(&corev1.SecurityContext{AppArmorProfile: armor})},
		"securityContext.seLinuxOptions": {podContext(&corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}),
			context(&corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}})},
		"securityContext.procMount": {context(&corev1.SecurityContext{ProcMount: new(corev1.UnmaskedProcMount)})},
		"resources.limits of huge pages": {func(s *corev1.PodSpec) {
			s.Containers[0].Resources.Limits = corev1.ResourceList{"hugepages-2Mi": quantity("2Mi")}
		}},
		"restartPolicyRules": {func(s *corev1.PodSpec) { s.Containers[0].RestartPolicyRules = make([]corev1.ContainerRestartRule, 1) }},
		"volumeDevices":      {func(s *corev1.PodSpec) { s.Containers[0].VolumeDevices = make([]corev1.VolumeDevice, 1) }},
		"volumeMounts.mountPropagation": {func(s *corev1.PodSpec) {
			s.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPropagation: new(corev1.MountPropagationHostToContainer)}}
		}},
	}
	for _, l := range lacks {
		if len(has[l.field]) == 0 {
			t.Errorf("%s: no pod that has it", l.field)
		}
		if !strings.Contains(string(page), l.field) {
			t.Errorf("docs/light-nodes.md does not have %s", l.field)
		}
	}
	for field, edits := range has {
		for _, edit := range edits {
			got := notSupported(testPod("web", func(p *corev1.Pod) { edit(&p.Spec) }), nil)
			if len(got) != 1 || !strings.HasPrefix(got[0], field) {
				t.Errorf("%s: %q", field, got)
			}
		}
	}
	plain := testPod("web", func(p *corev1.Pod) {
		p.Spec.HostUsers = new(true)
		podContext(&corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}})(&p.Spec)
		emptyDir(corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(quantity("1Mi"))})(&p.Spec)
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": quantity("1"), "memory": quantity("1Mi"),
			"ephemeral-storage": quantity("1Mi")}
	})
	if got := notSupported(plain, nil); len(got) > 0 {
		t.Errorf("%q", got)
	}
}
