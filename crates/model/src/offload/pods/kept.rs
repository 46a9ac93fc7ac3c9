//! Whether a remote API server stores all fields of a pod. An older one, or one with a feature gate off,
//! drops unknown fields without an error, anywhere in the spec. Checked before the gate is removed.

use serde_json::Value;

/// Fields that remote policies and webhooks rewrite, or that the fabric sets for the remote
/// cluster, with everything below them. Another value is accepted, but not a missing field, nor a
/// value that only lacks some parts.
const MAY_DIFFER: [&str; 26] = [
    "activeDeadlineSeconds",
    "affinity",
    "args",
    // Twins may have another name.
    "claimName",
    "command",
    "dnsConfig",
    "dnsPolicy",
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "livenessProbe",
    "nodeSelector",
    "postStart",
    "preStop",
    "priorityClassName",
    "readinessProbe",
    "resources",
    "schedulerName",
    "schedulingGates",
    "serviceAccount",
    "serviceAccountName",
    "sizeLimit",
    "startupProbe",
    "terminationGracePeriodSeconds",
    "tolerations",
    "topologySpreadConstraints",
];
/// Maps whose keys are no fields: a missing one was removed.
const MAPS: [&str; 3] = ["limits", "nodeSelector", "requests"];
/// This field may be missing: API servers that know the field write a default into every pod.
const MAY_BE_MISSING: &str = "resizePolicy";
/// Fields of a variable: webhooks that fetch secrets write another value, or a value instead of a reference.
const OF_VARIABLES: [&str; 3] = ["configMapKeyRef", "secretKeyRef", "value"];
/// Flags that protect when they are false.
const PROTECTS_WHEN_OFF: [&str; 7] = [
    "allowPrivilegeEscalation",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "hostProcess",
    "hostUsers",
    "privileged",
    "shareProcessNamespace",
];
/// Flags that protect when they are true.
const PROTECTS_WHEN_ON: [&str; 3] = ["readOnly", "readOnlyRootFilesystem", "runAsNonRoot"];
/// The key that identifies an element of a list: API servers and webhooks may add further elements.
const KEYS: [&str; 4] = ["mountPath", "devicePath", "name", "path"];

/// The first field of a pod that is not stored as it was sent.
#[must_use]
pub fn not_kept(sent: &Value, stored: &Value) -> Option<String> {
    lost(&sent["spec"], &stored["spec"], "spec")
}

fn lost(sent: &Value, stored: &Value, path: &str) -> Option<String> {
    match sent {
        Value::Null => None,
        Value::Object(fields) => fields.iter().find_map(|(field, value)| {
            let (name, stored) = (field.as_str(), &stored[field]);
            if name == MAY_BE_MISSING || path.contains(".env[") && OF_VARIABLES.contains(&name) {
                return None;
            }
            let path = format!("{path}.{field}");
            if MAY_DIFFER.contains(&name) && !stored.is_null() {
                return missing(value, stored, &path)?.into_iter().next();
            }
            lost(value, stored, &path)
        }),
        Value::Array(all) => all.iter().find_map(|one| {
            let key = KEYS.into_iter().find(|key| one[*key].is_string());
            let path = match key {
                Some(key) => format!("{path}[{}]", one[key].as_str().unwrap_or_default()),
                None => path.to_owned(),
            };
            let stored = stored.as_array().into_iter().flatten();
            let same = stored.filter(|it| key.is_none_or(|key| it[key] == one[key]));
            let mut losses: Vec<_> = same.map(|it| lost(one, it, &path)).collect();
            if losses.is_empty() {
                losses.push(lost(one, &Value::Null, &path).or_else(|| Some(path.clone())));
            }
            // Several elements may have the same name, and one without a name may be any of them.
            let is_stored = losses.contains(&None);
            let loss = losses.swap_remove(0).filter(|_| !is_stored);
            loss.map(|inner| if key.is_some() { inner } else { path })
        }),
        // A stricter policy there is accepted.
        Value::Bool(flag) if is_lax(path, *flag) => None,
        // API servers omit empty strings.
        Value::String(text) if text.is_empty() && stored.is_null() => None,
        _ => (sent != stored).then(|| path.to_owned()),
    }
}

/// The fields that are missing, if nothing else differs; `None` if something does: the value was rewritten.
fn missing(sent: &Value, stored: &Value, path: &str) -> Option<Vec<String>> {
    let is_map = MAPS.iter().any(|map| path.ends_with(&format!(".{map}")));
    let all: Option<Vec<_>> = match (sent, stored) {
        _ if sent == stored => return Some(Vec::new()),
        _ if is_map => return None,
        (_, Value::Null) => return Some(lost(sent, stored, path).into_iter().collect()),
        (Value::Object(fields), Value::Object(kept)) if kept.keys().all(|key| fields.contains_key(key)) => {
            let fields = fields.iter();
            fields
                .map(|(field, value)| missing(value, &stored[field], &format!("{path}.{field}")))
                .collect()
        }
        (Value::Array(all), Value::Array(kept)) if all.len() == kept.len() => {
            let both = all.iter().zip(kept).enumerate();
            both.map(|(at, (one, kept))| missing(one, kept, &format!("{path}[{at}]")))
                .collect()
        }
        _ => None,
    };
    all.map(|all| all.concat())
}

/// Whether a flag asks for less protection than its opposite.
fn is_lax(path: &str, flag: bool) -> bool {
    let field = path.rsplit('.').next().unwrap_or_default();
    if PROTECTS_WHEN_OFF.contains(&field) {
        return flag;
    }
    PROTECTS_WHEN_ON.contains(&field) && !flag
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
    fn additions_and_changes_by_others_do_not_count_as_dropped_fields() {
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
        spec["containers"][1]["securityContext"]["privileged"] = false.into();
        let mut sent = sent;
        sent["spec"]["containers"][0]["securityContext"]["privileged"] = true.into();
        let claim = |name: &str| json!({"name": "data", "persistentVolumeClaim": {"claimName": name}});
        let image =
            |policy: &str| json!({"name": "model", "image": {"reference": "model:1", "pullPolicy": policy}});
        let both = |name: &str, policy: &str| [claim(name), image(policy)];
        sent["spec"]["volumes"]
            .as_array_mut()
            .unwrap()
            .extend(both("data", "IfNotPresent"));
        stored["spec"]["volumes"]
            .as_array_mut()
            .unwrap()
            .extend(both("prime", "Always"));
        assert_eq!(not_kept(&sent, &stored), None);
    }

    #[test]
    fn dropped_security_fields_are_found_everywhere_in_the_spec() {
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
            ("/spec/containers", "spec.containers[a].image"),
        ] {
            let mut stored = pod();
            *stored.pointer_mut(pointer).unwrap() = Value::Null;
            assert_eq!(not_kept(&pod(), &stored).as_deref(), Some(path), "{pointer}");
        }
        // A policy there may not switch them on, but off.
        for flag in ["hostUsers", "enableServiceLinks"] {
            let (mut on, mut off) = (pod(), pod());
            on["spec"][flag] = true.into();
            off["spec"][flag] = false.into();
            assert_eq!(not_kept(&off, &on), Some(format!("spec.{flag}")));
            assert_eq!(not_kept(&on, &off), None);
        }
    }

    #[test]
    fn the_documentation_has_the_fields_that_may_differ() {
        const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/offloading-reference.md");
        let page = std::fs::read_to_string(PATH).unwrap();
        let (_, after) = page.split_once("<!-- may differ: begin -->\n").unwrap();
        let (written, _) = after.split_once("\n<!-- may differ: end -->").unwrap();
        let list = |fields: &[&str]| {
            let fields: Vec<_> = fields.iter().map(|field| format!("`{field}`")).collect();
            fields.join(", ")
        };
        let wanted = format!(
            "| fields | what is accepted there |\n|---|---|\n\
             | {} | another value |\n| {}, of a variable | another value, or none |\n| entries of {} | another value, or none |\n\
             | `{MAY_BE_MISSING}` | none |\n| {} | `false` instead of `true` |\n| {} | `true` instead of `false` |\n\
             | lists | further elements |",
            list(&MAY_DIFFER),
            list(&OF_VARIABLES),
            list(&MAPS),
            list(&PROTECTS_WHEN_OFF),
            list(&PROTECTS_WHEN_ON),
        );
        assert!(
            written == wanted,
            "docs/offloading-reference.md does not say what may differ; between its marks belongs:\n{wanted}"
        );
    }

    /// A pod with these fields of its container.
    fn with(container: &Value) -> Value {
        let mut pod = json!({"spec": {"containers": [{"name": "a", "image": "a:1"}]}});
        let fields = container.as_object().unwrap();
        pod["spec"]["containers"][0]
            .as_object_mut()
            .unwrap()
            .extend(fields.clone());
        pod
    }

    #[test]
    fn a_dropped_field_is_found_also_deep_in_the_spec() {
        for (container, gone, path) in [
            (
                json!({"restartPolicyRules": [{"action": "Restart"}]}),
                "/restartPolicyRules",
                "restartPolicyRules",
            ),
            (
                json!({"restartPolicy": "Always"}),
                "/restartPolicy",
                "restartPolicy",
            ),
            (
                json!({"lifecycle": {"stopSignal": "SIGUSR1", "preStop": {"sleep": {"seconds": 1}}}}),
                "/lifecycle/stopSignal",
                "lifecycle.stopSignal",
            ),
            (
                json!({"lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}),
                "/lifecycle/preStop",
                "lifecycle.preStop.sleep.seconds",
            ),
            (
                json!({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "a"}}}]}),
                "/env/0/valueFrom",
                "env[A].valueFrom.fileKeyRef.key",
            ),
            (
                json!({"volumeMounts": [{"mountPath": "/v", "mountPropagationMode": "New"}]}),
                "/volumeMounts/0/mountPropagationMode",
                "volumeMounts[/v].mountPropagationMode",
            ),
            (
                json!({"ports": [{"containerPort": 80}, {"containerPort": 81, "share": false}]}),
                "/ports/1/share",
                "ports",
            ),
            (
                json!({"resources": {"limits": {"cpu": "1"}}}),
                "/resources",
                "resources.limits.cpu",
            ),
        ] {
            let sent = with(&container);
            assert_eq!(not_kept(&sent, &sent), None, "{container}");
            let mut stored = sent.clone();
            *stored["spec"]["containers"][0].pointer_mut(gone).unwrap() = Value::Null;
            let path = format!("spec.containers[a].{path}");
            assert_eq!(not_kept(&sent, &stored), Some(path), "{container}");
        }
    }

    /// The JSON pointers of all fields below this one.
    fn fields(value: &Value, pointer: &str) -> Vec<String> {
        let at = |key: &str| format!("{pointer}/{key}");
        let mut all = Vec::new();
        for (key, value) in value.as_object().into_iter().flatten() {
            all.push(at(key));
            all.extend(fields(value, &at(key)));
        }
        for (index, value) in value.as_array().into_iter().flatten().enumerate() {
            all.extend(fields(value, &at(&index.to_string())));
        }
        all
    }

    /// An API server whose feature gate is off drops one field, wherever it is.
    #[test]
    fn every_dropped_field_is_found() {
        let mut sent = with(&json!({
            "command": ["a"], "lifecycle": {"preStop": {"sleep": {"seconds": 1}}, "stopSignal": "SIGUSR1"},
            "env": [{"name": "A", "valueFrom": {"fileKeyRef": {"key": "a", "optional": false}}}],
            "livenessProbe": {"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 2},
            "readinessProbe": {"grpc": {"port": 1, "service": "a"}}, "restartPolicyRules": [{"action": "Restart"}],
            "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "gpu", "request": "a"}]},
        }));
        let of_pod = json!({
            "dnsConfig": {"options": [{"name": "ndots", "value": "3"}], "searches": ["a"]},
            "hostUsers": false, "nodeSelector": {"a": "b"},
            "tolerations": [{"key": "a"}, {"key": "b", "effect": "NoExecute", "tolerationSeconds": 1}],
            "topologySpreadConstraints": [{"topologyKey": "a", "nodeTaintsPolicy": "Honor"}],
        });
        let spec = sent["spec"].as_object_mut().unwrap();
        spec.extend(of_pod.as_object().unwrap().clone());
        for pointer in fields(&sent["spec"], "/spec") {
            let mut stored = sent.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            let parent = stored.pointer_mut(parent).and_then(Value::as_object_mut);
            parent.unwrap().remove(field);
            // Keys of maps are not fields: admission there may remove one.
            let is_kept = pointer.contains("/nodeSelector/") || pointer.contains("/limits");
            assert_eq!(not_kept(&sent, &stored).is_none(), is_kept, "{pointer}");
        }
    }

    #[test]
    fn usual_changes_by_remote_admission_are_accepted() {
        for (sent, stored) in [
            // A policy there lowers the limit and adds a request.
            (
                json!({"resources": {"limits": {"cpu": "2"}}}),
                json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}}),
            ),
            // A policy there allows no limits of CPU.
            (
                json!({"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}),
                json!({"resources": {"limits": {"memory": "1Gi"}}}),
            ),
            // A service mesh probes instead of the container.
            (
                json!({"livenessProbe": {"tcpSocket": {"port": 80}}}),
                json!({"livenessProbe": {"httpGet": {"port": 15020, "path": "/app-health/a/livez"}}}),
            ),
            // A webhook that injects secrets replaces the command.
            (
                json!({"command": ["a"], "env": [
                    {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "a"}}},
                    {"name": "B", "value": "vault:b"},
                ]}),
                json!({"command": ["/vault/env"], "args": ["a"], "env": [{"name": "B", "value": "b"}, {"name": "A", "value": "a"}]}),
            ),
            // The same name twice.
            (
                json!({"env": [{"name": "A", "value": ""}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}),
                json!({"env": [{"name": "A"}, {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}),
            ),
            // A default of newer API servers.
            (
                json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}),
                json!({}),
            ),
            (json!({"securityContext": {}, "resources": {}}), json!({})),
            (
                json!({"image": "a:1", "imagePullPolicy": "IfNotPresent"}),
                json!({"image": "mirror/a:1", "imagePullPolicy": "Always"}),
            ),
        ] {
            assert_eq!(not_kept(&with(&sent), &with(&stored)), None, "{sent}");
        }
    }
}
