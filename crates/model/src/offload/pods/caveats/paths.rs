//! Directories of volumes that a pod names by variables with another value in the remote cluster.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    super::{
        spec::{as_carried, field_of, path_variables, references},
        volumes,
    },
    Destination, containers, joined, runs_shell, shell_references,
};

/// A pod that names a directory of a volume by a variable with another value in the remote cluster.
pub(super) fn path_of_home(home: &Value, destination: &Destination<'_>) -> Option<(&'static str, String)> {
    let paths = volumes::keep_data(&home["spec"]).then(|| paths_of_home(home, destination))?;
    let note = format!(
        "{}, which has another value in the cluster {}: a path that contains it is another directory there. Use \
         subPathExpr, whose directories have one name in every cluster, or a name without the variable, or keep the pod on \
         nodes of this cluster",
        joined(&paths),
        destination.cluster
    );
    (!paths.is_empty()).then_some(("HomePath", note))
}

/// The fields with a path that uses a variable with another value in the remote cluster. Other uses may be for logs and
/// metrics only, and are ignored.
fn paths_of_home(home: &Value, destination: &Destination<'_>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let kept = as_carried(home.clone(), destination.settings);
    for (list, container) in containers(&home["spec"]) {
        let in_subpaths = path_variables(container);
        let in_shell = runs_shell(container);
        let mut differing = BTreeSet::<String>::new();
        let mut record = |field: &str, variable: &str| {
            let container = container["name"].as_str().unwrap_or_default();
            found.insert(format!("spec.{list}[{container}].{field} has $({variable})"));
        };
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().unwrap_or_default();
            let field = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            let uses = uses(variable["value"].as_str().unwrap_or_default(), &differing, false);
            for used in uses.iter().filter(|one| one.is_path) {
                record("env", &used.variable);
            }
            let has_home_value = in_subpaths.iter().any(|it| it == name);
            let is_other =
                !has_home_value && field.is_some_and(|field| differs(home, &kept, field, destination));
            // If variables have the same name, the last one wins.
            if is_other || !uses.is_empty() {
                differing.insert(name.to_owned());
            } else {
                differing.remove(name);
            }
        }
        for field in ["command", "args"] {
            let all = container[field].as_array().into_iter().flatten();
            let uses = all
                .filter_map(Value::as_str)
                .flat_map(|text| uses(text, &differing, in_shell));
            for used in uses.filter(|one| one.is_path) {
                record(field, &used.variable);
            }
        }
    }
    found
}

/// A variable in a text.
struct Use {
    variable: String,
    /// Whether the word around it is a path.
    is_path: bool,
}

/// Where a text uses these variables, except in URLs. `in_shell`: a shell expands variables in it, too.
fn uses(text: &str, variables: &BTreeSet<String>, in_shell: bool) -> Vec<Use> {
    let words = text.split(|it: char| it.is_whitespace() || "=,;'\"".contains(it));
    let words = words.filter(|word| !word.contains("://"));
    let all = words.flat_map(|word| {
        let is_path = word.contains('/');
        let mut used: Vec<String> = references(word).collect();
        if in_shell {
            used.extend(shell_references(word).map(str::to_owned));
        }
        used.into_iter().map(move |variable| Use { variable, is_path })
    });
    all.filter(|one| variables.contains(&one.variable)).collect()
}

/// Whether a field of the downward API has another value in the remote cluster. Uids and addresses
/// differ for each pod anyway, so they do not count.
fn differs(home: &Value, kept: &Value, field: &str, destination: &Destination<'_>) -> bool {
    match field {
        "metadata.namespace" => home["metadata"]["namespace"] != destination.namespace,
        "metadata.name" | "metadata.uid" | "spec.serviceAccountName" => false,
        _ => field_of(home, kept, field).is_some(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{caveats, tests::to},
        *,
    };

    /// A pod with this container, which has variables of the downward API, and this volume.
    fn with(container: &Value, volume: &Value) -> Value {
        let fields = [
            ("POD_NAMESPACE", "metadata.namespace"),
            ("NODE", "spec.nodeName"),
            ("NAME", "metadata.name"),
            ("ACCOUNT", "spec.serviceAccountName"),
            ("UID", "metadata.uid"),
            ("IP", "status.podIP"),
            ("TIER", "metadata.labels['tier']"),
            ("APP", "metadata.labels['app']"),
        ];
        let fields =
            fields.map(|(name, path)| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}));
        let mut container = container.clone();
        container["name"] = "db".into();
        let mut env = fields.to_vec();
        env.extend(container["env"].as_array().into_iter().flatten().cloned());
        container["env"] = env.into();
        let mut volume = volume.clone();
        volume["name"] = "v".into();
        json!({
            "metadata": {"namespace": "shop", "labels": {"tier": "gold", "app": "db"}},
            "spec": {"nodeName": "milan", "serviceAccountName": "db", "containers": [container], "volumes": [volume]},
        })
    }

    /// The uses of variables that are reported.
    fn places(pod: &Value, namespace: &str) -> String {
        let all = caveats(pod, &to(namespace)).into_iter().map(|(reason, note)| {
            assert_eq!(reason, "HomePath");
            assert!(note.contains("milan") && note.contains("keep the pod"), "{note}");
            note.split(", which has").next().unwrap().to_owned()
        });
        all.collect::<Vec<_>>().join("; ")
    }

    fn args(text: &str) -> Value {
        json!({ "args": [text] })
    }

    fn shell(script: &str) -> Value {
        json!({"command": ["sh"], "args": ["-c", script]})
    }

    fn in_args(name: &str) -> String {
        format!("spec.containers[db].args has $({name})")
    }

    #[test]
    fn paths_that_expand_differently_there_are_reported_for_persistent_volumes() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
        for (container, wanted) in [
            (args("--dir=/data/$(POD_NAMESPACE)"), in_args("POD_NAMESPACE")),
            (args("--dir=/data/$(TIER)"), in_args("TIER")),
            (
                args("curl http://db/x; ls '/data/$(POD_NAMESPACE)'"),
                in_args("POD_NAMESPACE"),
            ),
            (
                json!({"command": ["run", "/data/$(NODE)"]}),
                "spec.containers[db].command has $(NODE)".to_owned(),
            ),
            (
                json!({"env": [{"name": "PGDATA", "value": "/data/$(POD_NAMESPACE)"}]}),
                "spec.containers[db].env has $(POD_NAMESPACE)".to_owned(),
            ),
            (
                json!({"env": [{"name": "DIR", "value": "$(POD_NAMESPACE)-db"}], "args": ["--dir=/data/$(DIR)"]}),
                in_args("DIR"),
            ),
            (shell("cd /data/$POD_NAMESPACE && run"), in_args("POD_NAMESPACE")),
            (
                shell("export PGDATA=\"/data/${POD_NAMESPACE:-x}/db\"; run"),
                in_args("POD_NAMESPACE"),
            ),
            (
                json!({"command": ["bash", "-ec", "mkdir -p /data/$NODE"]}),
                "spec.containers[db].command has $(NODE)".to_owned(),
            ),
        ] {
            assert_eq!(
                places(&with(&container, &claim), "shop-home"),
                wanted,
                "{container}"
            );
        }
        let by_namespace = args("/data/$(POD_NAMESPACE)");
        assert_eq!(
            places(&with(&by_namespace, &claim), "shop"),
            "",
            "it has the same name there"
        );
        let nfs = json!({"nfs": {"server": "nas", "path": "/"}});
        assert_eq!(
            places(&with(&by_namespace, &nfs), "shop-home"),
            in_args("POD_NAMESPACE")
        );
        let scratch = json!({"emptyDir": {}});
        assert_eq!(places(&with(&by_namespace, &scratch), "shop-home"), "");
    }

    #[test]
    fn variables_that_name_no_directory_of_a_volume_are_not_reported() {
        let claim = json!({"persistentVolumeClaim": {"claimName": "data"}});
        for container in [
            args("--namespace=$(POD_NAMESPACE)"),
            args("-l app.kubernetes.io/part-of=$(POD_NAMESPACE)"),
            args("cp /etc/a $(POD_NAMESPACE)"),
            args("http://db.$(POD_NAMESPACE).svc/x"),
            json!({
                "env": [{"name": "URL", "value": "http://db.$(POD_NAMESPACE).svc/x"}], "args": ["$(URL)/y"],
            }),
            // The directory has the same name there.
            json!({
                "env": [{"name": "DIR", "value": "tenants/$(POD_NAMESPACE)"}], "args": ["--dir=/data/$(DIR)"],
                "volumeMounts": [{"name": "v", "mountPath": "/data", "subPathExpr": "$(DIR)"}],
            }),
            json!({"env": [{"name": "POD_NAMESPACE", "value": "shop"}], "args": ["/data/$(POD_NAMESPACE)"]}),
            json!({"env": [{"name": "ATTRIBUTES", "value": "namespace=$(POD_NAMESPACE)"}]}),
            args("/data/$$(POD_NAMESPACE)"),
            // No shell expands these, or only those that are the same there.
            args("/data/$POD_NAMESPACE"),
            shell("curl http://db.$POD_NAMESPACE.svc/x; kubectl -n ${POD_NAMESPACE} get pods"),
            shell("cd /data/$NAME/${ACCOUNT}/${#POD_NAMESPACE}/$POD_NAMESPACES/$1"),
            args("/data/$(NAME)/$(ACCOUNT)/$(UID)/$(IP)/$(APP)/$(OTHER)"),
        ] {
            assert_eq!(places(&with(&container, &claim), "shop-home"), "", "{container}");
        }
    }
}
