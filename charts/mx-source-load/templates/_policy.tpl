{{/* The default policy: whether there is one, and what it is about. */}}

{{- define "mx.serverAddress" -}}
{{- printf "%s.%s:%d" (include "mx.named" (list . "server")) .Release.Namespace (int .Values.server.port) -}}
{{- end -}}

{{- define "mx.hasPolicy" -}}
{{- $spec := .Values.policy.spec -}}
{{- $server := or .Values.server.enabled ($spec.server | default dict).address -}}
{{- if and .Values.policy.create $server ($spec.prometheus | default dict).url }}true{{ end -}}
{{- end -}}
