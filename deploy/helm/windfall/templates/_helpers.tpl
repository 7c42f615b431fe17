{{/* Labels that select, and labels that tell. */}}
{{- define "windfall.selector" -}}
app.kubernetes.io/name: windfall
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{- define "windfall.labels" -}}
{{ include "windfall.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The image; of a role, whose own tag counts. */}}
{{- define "windfall.image" -}}
{{- $image := .root.Values.image }}
{{- if .own.tag }}{{ $image.repository }}:{{ .own.tag }}
{{- else if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Where pods run: each key of the role's own values (`own`), or else of the values for all. */}}
{{- define "windfall.placement" -}}
{{- $root := .root }}
{{- $own := .own }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "nodeSelector" "affinity" "tolerations" "priorityClassName" }}
{{- with (hasKey $own $key | ternary (get $own $key) (get $root.Values $key)) }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* The keys of `secrets.files` that a role gets, as a JSON list: the roles that send or that verify tokens have the key ring. */}}
{{- define "windfall.files" -}}
{{- $secrets := .root.Values.secrets }}
{{- $files := concat $secrets.shared .own.files }}
{{- if has .role (list "consumer" "reward-service" "wallet") }}
{{- $files = concat $files $secrets.connectors }}
{{- end }}
{{- $files | uniq | toJson }}
{{- end }}

{{/* Keys of a Secret as files. Those who only verify tokens get the verifiers' copy under the name of the ring, where there is one. */}}
{{- define "windfall.fileItems" -}}
{{- $verifies := and .root.Values.secrets.verifierCopy (has .role (list "token-service" "wallet")) }}
{{- range .files }}
- { key: {{ ternary "verifier.toml" . (and $verifies (eq . "keys.toml")) | quote }}, path: {{ . | quote }} }
{{- end }}
{{- end }}

{{/* Volumes of a Secret's keys as files. */}}
{{- define "windfall.filesVolume" -}}
secret:
  secretName: {{ .root.Values.secrets.files | quote }}
  items:
    {{- include "windfall.fileItems" . | nindent 4 }}
{{- end }}

{{/* What a container may do: nothing. */}}
{{- define "windfall.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "windfall.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end }}
