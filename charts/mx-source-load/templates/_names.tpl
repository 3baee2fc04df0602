{{/* Names and labels. Every name of a Service is a DNS label that starts with a letter and has room for a suffix. */}}

{{- define "mx.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mx.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "mx.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- $full = default $full .Values.fullnameOverride | replace "." "-" | lower -}}
{{- if regexMatch "^[^a-z]" $full }}{{ $full = printf "mx-%s" $full }}{{ end -}}
{{- $full | trunc 50 | trimAll "-" -}}
{{- end -}}

{{/* "mx.named" (list . "exporter"): the name of a component's objects. */}}
{{- define "mx.named" -}}
{{- printf "%s-%s" (include "mx.fullname" (index . 0)) (index . 1) -}}
{{- end -}}

{{/* Cluster-scoped objects carry the namespace too: two releases of one name in two namespaces do not meet. */}}
{{- define "mx.clusterNamed" -}}
{{- printf "%s-%s" (index . 0).Release.Namespace (include "mx.named" .) -}}
{{- end -}}

{{- define "mx.selector" -}}
app.kubernetes.io/name: {{ include "mx.name" (index . 0) | quote }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* "mx.labels" (list . "exporter" more...): the labels of an object; ours win over the user's and over `more` maps. */}}
{{- define "mx.labels" -}}
{{- $root := index . 0 -}}
{{- $labels := include "mx.selector" . | fromYaml -}}
{{- $_ := set $labels "helm.sh/chart" (include "mx.chart" $root) -}}
{{- $_ := set $labels "app.kubernetes.io/version" $root.Chart.AppVersion -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "mx-source-load" -}}
{{- range slice . 2 -}}{{- $labels = merge $labels (. | default dict) -}}{{- end -}}
{{- merge $labels ($root.Values.commonLabels | default dict) | toYaml -}}
{{- end -}}

{{/* Those of a pod: without versions, so that a chart that changes nothing in a pod restarts nothing. */}}
{{- define "mx.podLabels" -}}
{{- $root := index . 0 -}}
{{- $labels := include "mx.selector" . | fromYaml -}}
{{- $_ := set $labels "app.kubernetes.io/part-of" "mx-source-load" -}}
{{- merge $labels ((get $root.Values (index . 1)).podLabels | default dict) ($root.Values.commonLabels | default dict) | toYaml -}}
{{- end -}}

{{- define "mx.exporterNamespace" -}}
{{- default .Release.Namespace .Values.exporter.namespace.name -}}
{{- end -}}

{{/* "mx.namespaceOf" (list . "exporter"): where a component's namespaced objects go. */}}
{{- define "mx.namespaceOf" -}}
{{- if eq (index . 1) "exporter" }}{{ include "mx.exporterNamespace" (index . 0) }}{{ else }}{{ (index . 0).Release.Namespace }}{{ end -}}
{{- end -}}

{{- define "mx.serviceAccount" -}}
{{- $root := index . 0 -}}{{- $values := get $root.Values (index . 1) -}}
{{- $named := include "mx.named" . -}}
{{- if $values.serviceAccount.create }}{{ default $named $values.serviceAccount.name }}{{ else }}{{ default "default" $values.serviceAccount.name }}{{ end -}}
{{- end -}}
