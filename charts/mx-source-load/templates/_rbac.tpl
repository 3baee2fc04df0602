{{/* Roles from the rule lists in rbac/: one list for each feature, so that an installation grants what it uses. */}}

{{/* "mx.rules" (dict "root" . "component" "operator" "features" (list "policies")): the rules as YAML. */}}
{{- define "mx.rules" -}}
{{- $file := .root.Files.Get (printf "rbac/%s.yaml" .component) | fromYaml -}}
{{- range .features }}
{{- toYaml (index $file .) | nindent 0 }}
{{- end }}
{{- end -}}

{{/* "mx.role" (dict "root" . "component" c "features" (list) "namespace" n "suffix" s): a role and its binding;
     cluster-wide where the namespace is empty. */}}
{{- define "mx.role" -}}
{{- $of := list .root .component -}}
{{- $prefix := ternary "" "Cluster" (not (empty .namespace)) -}}
{{- $name := ternary (include "mx.named" $of) (include "mx.clusterNamed" $of) (not (empty .namespace)) -}}
{{- with .suffix }}{{ $name = printf "%s-%s" $name . }}{{ end -}}
{{- if and .namespace (ne .namespace (include "mx.namespaceOf" $of)) }}{{ $name = printf "%s-%s" .root.Release.Namespace $name }}{{ end -}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $prefix }}Role
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "mx.labels" $of | nindent 4 }}
rules:
  {{- include "mx.rules" . | trim | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $prefix }}RoleBinding
metadata:
  name: {{ $name }}
  {{- with .namespace }}
  namespace: {{ . | quote }}
  {{- end }}
  labels:
    {{- include "mx.labels" $of | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $prefix }}Role
  name: {{ $name }}
subjects:
  - kind: ServiceAccount
    name: {{ include "mx.serviceAccount" $of }}
    namespace: {{ include "mx.namespaceOf" $of | quote }}
{{- end -}}
