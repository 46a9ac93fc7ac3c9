{{/* What several templates say in the same words. */}}

{{- define "liqo-csi.driver" -}}storage.liqo.io{{- end }}

{{- define "liqo-csi.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "liqo-csi.labels" -}}
{{ include "liqo-csi.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* Labels by which pods are found; with `app.kubernetes.io/component` they are unique. */}}
{{- define "liqo-csi.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* "true" if csi-snapshotter is to run: it could not start where its kinds are not installed. */}}
{{- define "liqo-csi.snapshotter" -}}
{{- $wanted := toString .Values.controller.snapshotter.enabled }}
{{- if or (eq $wanted "true") (and (eq $wanted "auto") (.Capabilities.APIVersions.Has "snapshot.storage.k8s.io/v1")) }}true{{ end }}
{{- end }}

{{/* Nodes with a kubelet of their own. */}}
{{- define "liqo-csi.realNodes" -}}
requiredDuringSchedulingIgnoredDuringExecution:
  nodeSelectorTerms:
    - matchExpressions:
        {{- toYaml .Values.virtualNodes | nindent 8 }}
{{- end }}

{{/* What no container that needs no privileges should have. */}}
{{- define "liqo-csi.unprivileged" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/*
One stock sidecar. Arguments: root, name, port, settings (image, timeout, workers,
extraArgs, resources), args (its own flags).
*/}}
{{- define "liqo-csi.sidecar" -}}
- name: {{ .name }}
  image: {{ .settings.image }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --leader-election
    - --leader-election-namespace=$(POD_NAMESPACE)
    - --http-endpoint=:{{ .port }}
    - --timeout={{ .settings.timeout }}
    - --kube-api-qps={{ .root.Values.controller.kubeAPI.qps }}
    - --kube-api-burst={{ .root.Values.controller.kubeAPI.burst }}
    {{- range concat .args .settings.extraArgs }}
    - {{ . }}
    {{- end }}
  env:
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  ports:
    - {name: {{ .short }}, containerPort: {{ .port }}}
  livenessProbe:
    httpGet: {path: /healthz/leader-election, port: {{ .short }}}
    initialDelaySeconds: 10
    timeoutSeconds: 10
    periodSeconds: 20
  resources:
    {{- toYaml .settings.resources | nindent 4 }}
  securityContext:
    {{- include "liqo-csi.unprivileged" . | nindent 4 }}
  volumeMounts:
    - {name: socket, mountPath: /csi}
{{- end }}
