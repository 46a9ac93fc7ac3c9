//! Whether a remote API server stores all fields of a pod. An older one, or one with a feature gate off,
//! drops unknown fields without an error; fields that protect the pod, or others from it, must not be lost
//! that way. Checked before the gate is removed.

use serde_json::Value;

/// Fields that protect, with everything below them, anywhere in a pod's spec.
const PROTECTING: [&str; 12] = [
    "automountServiceAccountToken",
    "defaultMode",
    "hostUsers",
    "mode",
    "readOnly",
    "recursiveReadOnly",
    "runtimeClassName",
    "securityContext",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subPath",
    "subPathExpr",
];
/// Fields of a pod's spec that this version knows. Any other may protect.
const KNOWN: [&str; 37] = [
    "activeDeadlineSeconds",
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "enableServiceLinks",
    "ephemeralContainers",
    "hostAliases",
    "hostIPC",
    "hostNetwork",
    "hostPID",
    "hostUsers",
    "hostname",
    "hostnameOverride",
    "imagePullSecrets",
    "initContainers",
    "nodeName",
    "nodeSelector",
    "os",
    "overhead",
    "preemptionPolicy",
    "priority",
    "priorityClassName",
    "readinessGates",
    "resources",
    "restartPolicy",
    "runtimeClassName",
    "schedulerName",
    "schedulingGates",
    "securityContext",
    "serviceAccount",
    "serviceAccountName",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "subdomain",
    "terminationGracePeriodSeconds",
];
/// Flags that protect when they are false.
const PROTECTS_WHEN_OFF: [&str; 6] = [
    "allowPrivilegeEscalation",
    "automountServiceAccountToken",
    "hostProcess",
    "hostUsers",
    "privileged",
    "shareProcessNamespace",
];
/// The key that identifies an element of a list: API servers and webhooks may add further elements.
const KEYS: [&str; 4] = ["mountPath", "devicePath", "name", "path"];

/// The first protecting field of a pod that is not stored as it was sent.
#[must_use]
pub fn not_kept(sent: &Value, stored: &Value) -> Option<String> {
    let spec = sent["spec"].as_object()?;
    spec.iter().find_map(|(field, value)| {
        let is_written_for_there = matches!(
            field.as_str(),
            "tolerations" | "topologySpreadConstraints" | "volumes"
        );
        let protects =
            PROTECTING.contains(&field.as_str()) || !KNOWN.contains(&field.as_str()) && !is_written_for_there;
        lost(value, &stored["spec"][field], protects, &format!("spec.{field}"))
    })
}

fn lost(sent: &Value, stored: &Value, protects: bool, path: &str) -> Option<String> {
    match sent {
        Value::Null => None,
        Value::Object(fields) => fields.iter().find_map(|(field, value)| {
            let protects = protects || PROTECTING.contains(&field.as_str());
            lost(value, &stored[field], protects, &format!("{path}.{field}"))
        }),
        Value::Array(all) => {
            let none = Vec::new();
            let stored = stored.as_array().unwrap_or(&none);
            all.iter().find_map(|one| {
                let Some(key) = KEYS.into_iter().find(|key| one[*key].is_string()) else {
                    let is_there = stored.iter().any(|it| lost(one, it, protects, path).is_none());
                    return if is_there {
                        None
                    } else {
                        lost(one, &Value::Null, protects, path)
                    };
                };
                let path = format!("{path}[{}]", one[key].as_str().unwrap_or_default());
                let same = stored.iter().find(|it| it[key] == one[key]);
                lost(one, same.unwrap_or(&Value::Null), protects, &path)
            })
        }
        // A stricter policy there is accepted.
        Value::Bool(flag) if is_lax(path, *flag) => None,
        _ => (protects && sent != stored).then(|| path.to_owned()),
    }
}

/// Whether a flag asks for less protection than its opposite.
fn is_lax(path: &str, flag: bool) -> bool {
    let field = path.rsplit('.').next().unwrap_or_default();
    if PROTECTS_WHEN_OFF.contains(&field) {
        return flag;
    }
    matches!(field, "readOnly" | "readOnlyRootFilesystem" | "runAsNonRoot") && !flag
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({"spec": {
            "hostUsers": false, "newFeature": {"on": false}, "enableServiceLinks": false,
            "securityContext": {"fsGroup": 2000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "a", "image": "a:1", "ports": [{"containerPort": 80}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": false},
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}, {"name": "v", "mountPath": "/w"}],
            }],
            "tolerations": [{"key": "a"}],
            "volumes": [{"name": "v", "secret": {"secretName": "s", "defaultMode": 256}}],
        }})
    }

    #[test]
    fn what_others_add_or_rewrite_there_is_no_loss() {
        let sent = pod();
        assert_eq!(not_kept(&sent, &sent), None);
        let mut stored = pod();
        let spec = &mut stored["spec"];
        spec["containers"][0]["image"] = "mirror/a:1".into();
        spec["containers"][0]["resources"] = json!({"limits": {"cpu": "1"}});
        spec["containers"]
            .as_array_mut()
            .unwrap()
            .insert(0, json!({"name": "mesh"}));
        spec["containers"][1]["securityContext"]["capabilities"]["drop"] = json!(["NET_RAW", "ALL"]);
        spec["tolerations"] = json!([]);
        spec["enableServiceLinks"] = true.into();
        spec["containers"][1]["securityContext"]["privileged"] = false.into();
        let mut sent = sent;
        sent["spec"]["containers"][0]["securityContext"]["privileged"] = true.into();
        assert_eq!(not_kept(&sent, &stored), None);
    }

    #[test]
    fn what_protects_is_missed_wherever_it_is() {
        for (pointer, path) in [
            ("/spec/hostUsers", "spec.hostUsers"),
            ("/spec/newFeature", "spec.newFeature.on"),
            (
                "/spec/securityContext/seccompProfile",
                "spec.securityContext.seccompProfile.type",
            ),
            (
                "/spec/containers/0/securityContext/capabilities/drop/0",
                "spec.containers[a].securityContext.capabilities.drop",
            ),
            (
                "/spec/containers/0/securityContext/allowPrivilegeEscalation",
                "spec.containers[a].securityContext.allowPrivilegeEscalation",
            ),
            (
                "/spec/containers/0/volumeMounts/0/readOnly",
                "spec.containers[a].volumeMounts[/v].readOnly",
            ),
            (
                "/spec/volumes/0/secret/defaultMode",
                "spec.volumes[v].secret.defaultMode",
            ),
            (
                "/spec/containers",
                "spec.containers[a].securityContext.allowPrivilegeEscalation",
            ),
        ] {
            let mut stored = pod();
            *stored.pointer_mut(pointer).unwrap() = Value::Null;
            assert_eq!(not_kept(&pod(), &stored).as_deref(), Some(path), "{pointer}");
        }
        let mut stored = pod();
        stored["spec"]["hostUsers"] = true.into();
        assert_eq!(not_kept(&pod(), &stored).as_deref(), Some("spec.hostUsers"));
    }
}
