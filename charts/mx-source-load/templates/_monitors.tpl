{{/* "mx.monitorEndpoint" (dict "values" monitor "port" name): one endpoint of a ServiceMonitor or PodMonitor. */}}
{{- define "mx.monitorEndpoint" -}}
- port: {{ .port }}
  path: {{ default "/metrics" .values.path }}
  honorLabels: {{ .values.honorLabels }}
  {{- with .values.interval }}
  interval: {{ . }}
  {{- end }}
  {{- with .values.scrapeTimeout }}
  scrapeTimeout: {{ . }}
  {{- end }}
  {{- with .values.relabelings }}
  relabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* "mx.monitorMetadata" (list . "exporter" monitor): metadata with the labels that a Prometheus selects monitors by. */}}
{{- define "mx.monitorMetadata" -}}
{{- $root := index . 0 -}}
name: {{ include "mx.named" . }}
namespace: {{ default (include "mx.namespaceOf" .) $root.Values.monitoring.namespace | quote }}
labels:
  {{- include "mx.labels" (list $root (index . 1) (index . 2).labels $root.Values.monitoring.labels) | nindent 2 }}
{{- end -}}
