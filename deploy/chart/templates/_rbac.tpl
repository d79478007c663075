{{/* A role bound to a service account of the release's namespace. */}}
{{- define "packetwalk.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .role }}
  namespace: {{ .namespace }}
  labels:
    {{- include "packetwalk.labels" .labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .role }}
subjects:
- kind: ServiceAccount
  name: {{ .account }}
  namespace: {{ .labels.root.Release.Namespace }}
{{- end -}}

{{/* The right to see whether the pod's own DaemonSet is still there. */}}
{{- define "packetwalk.ownDaemonSet" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  namespace: {{ .labels.root.Release.Namespace }}
  labels:
    {{- include "packetwalk.labels" .labels | nindent 4 }}
rules:
- apiGroups: [apps]
  resources: [daemonsets]
  resourceNames: [{{ .name }}]
  verbs: [get, list, watch]
---
{{ include "packetwalk.roleBinding" (dict "labels" .labels "role" .name "namespace" .labels.root.Release.Namespace "account" .name) }}
{{- end -}}
