{{/* The default policy: whether there is one, and what it is about. */}}

{{- define "mx.serverAddress" -}}
{{- printf "%s.%s:%d" (include "mx.named" (list . "server")) .Release.Namespace (int .Values.server.port) -}}
{{- end -}}

{{- define "mx.hasPolicy" -}}
{{- $spec := .Values.policy.spec -}}
{{- $server := or .Values.server.enabled ($spec.server | default dict).address -}}
{{- if and .Values.policy.create $server ($spec.prometheus | default dict).url }}true{{ end -}}
{{- end -}}

{{/* Annotations of the policy that an installation makes: a hook that looks like the release's own to the next one. */}}
{{- define "mx.installHook" -}}
helm.sh/hook: post-install
helm.sh/hook-delete-policy: hook-failed
meta.helm.sh/release-name: {{ .Release.Name | quote }}
meta.helm.sh/release-namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{- define "mx.leavingHook" -}}
helm.sh/hook: {{ ternary "pre-install" "pre-upgrade" .Release.IsInstall }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/* How often this chart has the exporters scraped; empty where it does not, or leaves it to Prometheus. */}}
{{- define "mx.scrapeInterval" -}}
{{- $exporter := .Values.exporter -}}
{{- if $exporter.enabled -}}
{{- if $exporter.podMonitor.enabled }}{{ $exporter.podMonitor.interval }}{{ else if $exporter.serviceMonitor.enabled }}{{ $exporter.serviceMonitor.interval }}{{ end -}}
{{- end -}}
{{- end -}}
