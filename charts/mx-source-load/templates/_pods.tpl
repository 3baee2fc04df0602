{{/* What the pods of all components share. Each takes (list . "component"). */}}

{{- define "mx.image" -}}
{{- $root := index . 0 -}}{{- $image := (get $root.Values (index . 1)).image -}}
{{- $registry := default $image.registry $root.Values.global.imageRegistry -}}
{{- $name := $image.repository -}}
{{- if $registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $registry) $name }}{{ end -}}
{{- if $image.digest }}{{ printf "%s@%s" $name $image.digest }}{{ else }}{{ printf "%s:%s" $name (default $root.Chart.AppVersion $image.tag) }}{{ end -}}
{{- end -}}

{{- define "mx.podMetadata" -}}
{{- $root := index . 0 -}}{{- $values := get $root.Values (index . 1) -}}
labels:
  {{- include "mx.podLabels" . | nindent 2 }}
{{- $annotations := $values.podAnnotations | default dict }}
{{- /* A configuration is read once, at the start; the file of sources is followed. */}}
{{- with $values.config }}{{ $annotations = merge (dict "sourceload.dev/config" (toYaml . | sha256sum | trunc 16)) $annotations }}{{ end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "mx.placement" -}}
{{- $root := index . 0 -}}{{- $values := get $root.Values (index . 1) -}}
{{- with concat ($root.Values.global.imagePullSecrets | default list) ($root.Values.imagePullSecrets | default list) }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name | quote }}{{ else }}{{ . | quote }}{{ end }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Pod Security "restricted". */}}
{{- define "mx.podSecurity" -}}
runAsNonRoot: true
{{- range $field := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- with get $.Values.podSecurity $field }}
{{ $field }}: {{ int64 . }}
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "mx.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "mx.probes" -}}
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  initialDelaySeconds: 10
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end -}}

{{/* "mx.address" (list . port): host:port to listen on; brackets for IPv6 are the value's own. */}}
{{- define "mx.address" -}}
{{- printf "%s:%v" (index . 0).Values.listenHost (index . 1 | int) -}}
{{- end -}}
