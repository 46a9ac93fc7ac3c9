{{/* What several templates say in the same words. */}}

{{- define "liqo-csi.driver" -}}storage.liqo.io{{- end }}

{{- define "liqo-csi.image" -}}
{{ include "liqo-csi.fromRegistry" (list . (printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion))) }}
{{- end }}

{{/* An image, from imageRegistry if that is set. Its first part is a registry if it looks like a host. Arguments: root, image. */}}
{{- define "liqo-csi.fromRegistry" -}}
{{- $image := index . 1 }}
{{- with (index . 0).Values.imageRegistry }}
{{- $image = printf "%s/%s" . (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $image "") }}
{{- end }}
{{- $image }}
{{- end }}

{{/* What all containers of the driver have in their environment. */}}
{{- define "liqo-csi.environment" -}}
- {name: RUST_LOG, value: {{ .Values.logLevel | default "info" | quote }}}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/*
Affinity of a Deployment's pods: to nodes with a kubelet, and, unless the settings say otherwise, rather not two of
them to one node. Arguments: root, component, settings.
*/}}
{{- define "liqo-csi.affinity" -}}
nodeAffinity:
  {{- include "liqo-csi.realNodes" .root | nindent 2 }}
{{- if .settings.affinity }}
{{ toYaml .settings.affinity }}
{{- else }}
podAntiAffinity:
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "liqo-csi.selector" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- end }}

{{- define "liqo-csi.labels" -}}
{{ include "liqo-csi.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels by which pods are found; with `app.kubernetes.io/component` they are unique. */}}
{{- define "liqo-csi.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | toYaml }}
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
        # The image is one of Linux.
        - {key: kubernetes.io/os, operator: In, values: [linux]}
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
  image: {{ include "liqo-csi.fromRegistry" (list .root .settings.image) }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --leader-election
    - --leader-election-namespace=$(POD_NAMESPACE)
    - --http-endpoint=:{{ .port }}
    - --timeout={{ .settings.timeout }}
    - --kube-api-qps={{ .root.Values.controller.kubeAPI.qps }}
    - --kube-api-burst={{ .root.Values.controller.kubeAPI.burst }}
    {{- with .root.Values.controller.sidecarVerbosity }}
    - --v={{ . }}
    {{- end }}
    {{- toYaml (concat .args (.settings.extraArgs | default list)) | nindent 4 }}
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

{{/* "true" if the controller approves the serving certificates of the fabric. */}}
{{- define "liqo-csi.approvesCertificates" -}}
{{- if and .Values.fabric.enabled .Values.fabric.streams.approveCertificates }}true{{ end }}
{{- end }}

{{/*
Annotations of an object that exists during `helm test` only; a pod that failed stays until the next test. Argument: weight.
*/}}
{{- define "liqo-csi.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
