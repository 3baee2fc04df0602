{{/* The exporter's settings as environment variables: a map of name to value. */}}
{{- define "mx.exporterSettings" -}}
{{- $exporter := .Values.exporter -}}
MX_EXPORTER_LISTEN: {{ include "mx.address" (list . $exporter.port) | quote }}
MX_EXPORTER_SYSFS: /host/sys
MX_EXPORTER_DISCOVERY: {{ $exporter.discovery | quote }}
MX_EXPORTER_WINDOW: {{ $exporter.window | quote }}
MX_EXPORTER_INTERVAL: {{ $exporter.interval | quote }}
MX_EXPORTER_SCRAPE_INTERVAL: {{ $exporter.scrapeInterval | quote }}
{{- if $exporter.podResources.enabled }}
MX_EXPORTER_POD_RESOURCES: {{ printf "%s/kubelet.sock" $exporter.podResources.folder | quote }}
{{- end }}
{{- if eq $exporter.discovery "static" }}
MX_EXPORTER_SOURCES: /etc/mx-exporter/sources.yaml
{{- end }}
{{- if $exporter.config }}
MX_EXPORTER_CONFIG: /etc/mx-exporter/config.yaml
{{- end }}
{{- end -}}
