{{- define "packetwalk.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "packetwalk.node" -}}{{ include "packetwalk.name" . }}-node{{- end -}}

{{- define "packetwalk.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}{{ with .Values.image.tag }}:{{ . }}{{ end }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* Labels that select the pods of a component: never changed, because a DaemonSet's selector cannot be. */}}
{{- define "packetwalk.selector" -}}
app.kubernetes.io/name: packetwalk
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "packetwalk.labels" -}}
{{ include "packetwalk.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end -}}

{{- define "packetwalk.nodeOn" -}}
{{- if or .Values.serviceProxy.enabled .Values.ipMasqAgent.enabled }}true{{ end -}}
{{- end -}}

{{/* The condition of a pod that waits for another service proxy. */}}
{{- define "packetwalk.waiting" -}}packetwalk.dev/WaitingForServiceProxy{{- end -}}

{{/* Without the service proxy there is another one on the node, most often kube-proxy, which has its own port. */}}
{{- define "packetwalk.metricsPort" -}}
{{- default (ternary 10249 10349 .Values.serviceProxy.enabled) .Values.metrics.port -}}
{{- end -}}

{{/* The API server's own address: that of the Service kubernetes needs the rules that are yet to be written. */}}
{{- define "packetwalk.kubeconfig" -}}
apiVersion: v1
kind: Config
clusters:
- name: default
  cluster:
    server: {{ .Values.apiServer | quote }}
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
users:
- name: default
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
- name: default
  context:
    cluster: default
    user: default
current-context: default
{{- end -}}

{{/* Whether the ip-masq-agent's ConfigMap is the chart's own: it goes with the release, and rules are not to become the defaults' meanwhile. */}}
{{- define "packetwalk.ownMasqConfig" -}}
{{- if and .Values.ipMasqAgent.enabled .Values.ipMasqAgent.config (not .Values.ipMasqAgent.configMaps) }}true{{ end -}}
{{- end -}}

{{- define "packetwalk.masqConfigMaps" -}}
{{- if .Values.ipMasqAgent.configMaps -}}
{{ join "," .Values.ipMasqAgent.configMaps }}
{{- else if .Values.ipMasqAgent.config -}}
{{ include "packetwalk.name" . }}-ip-masq
{{- else -}}
azure-ip-masq-agent-config,azure-ip-masq-agent-config-reconciled
{{- end -}}
{{- end -}}

{{- define "packetwalk.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: POD_UID # for who asks in the pod: check-livez, check-readyz
  valueFrom:
    fieldRef:
      fieldPath: metadata.uid
{{- end -}}

{{/* Labels and annotations of the pods of .values. */}}
{{- define "packetwalk.podMetadata" -}}
labels:
  {{- include "packetwalk.labels" .labels | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  packetwalk.dev/config: {{ .config | toJson | sha256sum }} # another one takes other pods, which read it at their start
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* What the DaemonSet's pods have. They start before there is a network for pods. */}}
{{- define "packetwalk.pod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
hostNetwork: true
dnsPolicy: Default
{{- with .root.Values.seLinuxOptions }}
securityContext:
  seLinuxOptions:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- end -}}
