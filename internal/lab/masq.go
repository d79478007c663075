package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"packetwalk.dev/internal/lab/cluster"
	"packetwalk.dev/internal/lab/plan"
	"packetwalk.dev/internal/node/ipmasq"
)

// What AKS has of the ip-masq-agent in kube-system.
const (
	masqDaemonSet   = "azure-ip-masq-agent"
	masqVolume      = "azure-ip-masq-agent-config-volume"
	masqOwnKey      = "ip-masq-agent-reconciled"
	masqImageV1     = "mcr.microsoft.com/oss/kubernetes/ip-masq-agent:v2.5.0"
	masqImageV2     = "mcr.microsoft.com/aks/ip-masq-agent-v2:v0.1.15"
	agentPort       = 10249 // of packetwalk-node's metrics and states
	masqAgentState  = "/ip-masq-agent"
	masqAgentHealth = "/ip-masq-agent/healthz"
)

// addonMode is the label that says what AKS does with an object that users change: with "Reconcile" it undoes that, with "EnsureExists" it
// makes the object once.
const addonMode = "addonmanager.kubernetes.io/mode"

// masq is the ip-masq-agent's ConfigMap and DaemonSet, where the cluster has one. The agents themselves are part of packetwalk-node; the
// pods show their logs and health.
type masq struct {
	still
	*core
	api   *api
	nodes *nodes
}

// Start brings them into the API, as AKS does, before the nodes' agents start: without a ConfigMap they would take upstream's defaults.
func (l *masq) Start(ctx context.Context) error {
	age := l.cluster().Spec.Network.IPMasqAgent
	if age == cluster.IPMasqNone {
		return nil
	}
	config, err := masqConfigMap(age, l.cluster().Spec.Network.NonMasqueradeCIDRs)
	if err == nil {
		err = applyConfigMap(ctx, l.api.client, config)
	}
	if err != nil {
		return err
	}
	_, err = l.api.client.AppsV1().DaemonSets(metav1.NamespaceSystem).Create(ctx, masqDaemonSetObject(age), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create DaemonSet %s: %w", masqDaemonSet, err)
	}
	return nil
}

// Change brings other nonMasqueradeCIDRs to the agents, by their ConfigMap.
func (l *masq) Change(ctx context.Context, c change) error {
	age, ranges := c.to.Spec.Network.IPMasqAgent, c.to.Spec.Network.NonMasqueradeCIDRs
	if age == cluster.IPMasqNone || slices.Equal(c.from.Spec.Network.NonMasqueradeCIDRs, ranges) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	config, err := masqConfigMap(age, ranges)
	if err == nil {
		err = putConfigMap(ctx, l.api.client, config)
	}
	if err != nil {
		return fmt.Errorf("change the ip-masq-agent's configuration: %w", err)
	}
	return nil
}

// masqConfigMap is AKS's own ConfigMap: of form v1 the one that users edit, which it makes once; of form v2 the one that it keeps as it is.
func masqConfigMap(age cluster.IPMasqAgent, ranges []netip.Prefix) (*corev1.ConfigMap, error) {
	form, err := ipmasq.ParseForm(string(age))
	if err != nil {
		return nil, err
	}
	c := ipmasq.Config{MasqLinkLocal: ipmasq.Switch{On: true}, CIDRLimit: ipmasq.DefaultCIDRLimit,
		ResyncInterval: ipmasq.DefaultResyncInterval}
	for _, r := range ranges {
		c.NonMasquerade = append(c.NonMasquerade, ipmasq.CIDR{Prefix: r})
	}
	name, key, mode := ipmasq.UserConfigMap, ipmasq.FileV1, "EnsureExists"
	if form == ipmasq.FormV2 {
		name, key, mode = ipmasq.ReconciledConfigMap, masqOwnKey, "Reconcile"
	}
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name, Labels: map[string]string{
			"component": masqDaemonSet, "kubernetes.io/cluster-service": "true", addonMode: mode,
		}},
		Data: map[string]string{key: c.Text(form)},
	}, nil
}

// applyConfigMap makes the ConfigMap, and makes one that is there already the same where its mode is Reconcile. kube-system itself comes a
// moment after the API server is ready.
func applyConfigMap(ctx context.Context, client kubernetes.Interface, c *corev1.ConfigMap) error {
	for {
		_, err := client.CoreV1().ConfigMaps(c.Namespace).Create(ctx, c, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err) && c.Labels[addonMode] == "Reconcile":
			return putConfigMap(ctx, client, c)
		case apierrors.IsAlreadyExists(err):
			return nil
		case !apierrors.IsNotFound(err):
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// putConfigMap makes the ConfigMap this one, whatever there was.
func putConfigMap(ctx context.Context, client kubernetes.Interface, c *corev1.ConfigMap) error {
	maps := client.CoreV1().ConfigMaps(c.Namespace)
	_, err := maps.Update(ctx, c, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(ctx, c, metav1.CreateOptions{})
	}
	return err
}

// masqDaemonSetObject is AKS's DaemonSet: a pod in the host's network on every node that is a virtual machine. What no ip-masq-agent has is
// the readiness probe: a pod whose agent could not apply its configuration is not Ready.
func masqDaemonSetObject(age cluster.IPMasqAgent) *appsv1.DaemonSet {
	image := masqImageV1
	if age == cluster.IPMasqV2 {
		image = masqImageV2
	}
	labels := map[string]string{"k8s-app": masqDaemonSet, "tier": "node"}
	no := false
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: masqDaemonSet, Labels: map[string]string{
			"component": masqDaemonSet, "tier": "node", "kubernetes.io/cluster-service": "true", addonMode: "Reconcile",
		}},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					HostNetwork: true, DNSPolicy: corev1.DNSDefault, PriorityClassName: "system-node-critical", AutomountServiceAccountToken: &no,
					NodeSelector: map[string]string{corev1.LabelOSStable: "linux"}, Affinity: onVirtualMachines(),
					Tolerations: []corev1.Toleration{
						{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists},
						{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
						{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute},
					},
					Containers: []corev1.Container{{
						Name: masqDaemonSet, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
						VolumeMounts: []corev1.VolumeMount{{Name: masqVolume, MountPath: "/etc/config"}},
						ReadinessProbe: &corev1.Probe{PeriodSeconds: 5, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
							Host: "127.0.0.1", Port: intstr.FromInt32(agentPort), Path: masqAgentHealth,
						}}},
					}},
					Volumes: []corev1.Volume{{Name: masqVolume, VolumeSource: corev1.VolumeSource{
						Projected: &corev1.ProjectedVolumeSource{Sources: projections(plan.MasqConfigMaps(age))},
					}}},
				},
			},
		},
	}
}

// onVirtualMachines keeps pods off virtual nodes, whatever they tolerate.
func onVirtualMachines() *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
			{Key: "kubernetes.azure.com/cluster", Operator: corev1.NodeSelectorOpExists},
			{Key: "type", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"virtual-kubelet"}},
		}}},
	}}}
}

// projections are ConfigMaps that need not be there, in one directory.
func projections(names []string) []corev1.VolumeProjection {
	yes := true
	var sources []corev1.VolumeProjection
	for _, name := range names {
		sources = append(sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &yes,
		}})
	}
	return sources
}
