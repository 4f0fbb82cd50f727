{{/* Labels that Services and policies select the pods of a daemon by. */}}
{{- define "streameval.selector" -}}
app.kubernetes.io/name: streameval
app.kubernetes.io/instance: {{ .name | default .Release.Name }}
app.kubernetes.io/component: daemon
{{- end }}

{{/* The labels of every object, except the component. */}}
{{- define "streameval.labels" -}}
app.kubernetes.io/name: streameval
app.kubernetes.io/instance: {{ .name | default .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "streameval.secret" -}}
{{ .Values.secretName | default .Release.Name }}
{{- end }}
