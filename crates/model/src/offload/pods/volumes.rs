//! Which volumes of a home pod its remote pod has.

use serde_json::{Map, Value};

use super::{PodRefused, RemoteSettings};
use crate::offload::reflection::{Kind, name_of_copy};

/// Kubernetes mounts the token of a service account by a volume with such a name.
const TOKEN_VOLUME: &str = "kube-api-access-";

/// Volume sources that mean the same in every cluster: the objects they name are copied, exist there under
/// the same name, or are outside of both clusters.
const CARRIED: [&str; 22] = [
    "awsElasticBlockStore",
    "azureDisk",
    "azureFile",
    "cephfs",
    "cinder",
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "fc",
    "flocker",
    "gcePersistentDisk",
    "glusterfs",
    "image",
    "iscsi",
    "nfs",
    "persistentVolumeClaim",
    "portworxVolume",
    "quobyte",
    "rbd",
    "secret",
    "vsphereVolume",
];
/// Kinds that exist only in the home cluster: `ephemeral` makes a claim here, the others use what is installed on
/// its machines.
pub(super) const AT_HOME_ONLY: [&str; 4] = ["ephemeral", "flexVolume", "gitRepo", "hostPath"];
/// Sources of a projected volume that exist only in the home cluster.
pub(super) const SOURCES_AT_HOME_ONLY: [&str; 3] =
    ["clusterTrustBundle", "podCertificate", "serviceAccountToken"];
/// Allowed sources of a projected volume.
const CARRIED_SOURCES: [&str; 3] = ["configMap", "downwardAPI", "secret"];

/// The volumes of the remote pod, and the names of those that are left out: token volumes that Kubernetes has
/// added, whose tokens are invalid there.
pub(super) fn remote(
    volumes: Option<&Value>,
    settings: &RemoteSettings,
) -> Result<(Value, Vec<String>), PodRefused> {
    let (mut kept, mut tokens) = (Vec::new(), Vec::new());
    for volume in volumes.and_then(Value::as_array).into_iter().flatten() {
        let name = volume["name"].as_str().unwrap_or_default();
        if is_token(name, volume) {
            tokens.push(name.to_owned());
            continue;
        }
        check(name, volume)?;
        let mut volume = with_copies(volume.clone(), &settings.home);
        if let Some(claim) = volume.pointer_mut("/persistentVolumeClaim/claimName")
            && let Some(name) = claim.as_str().and_then(|name| settings.claims.get(name))
        {
            *claim = name.as_str().into();
        }
        kept.push(volume);
    }
    Ok((kept.into(), tokens))
}

/// The names of the volumes that [`remote`] leaves out.
pub(super) fn tokens(volumes: Option<&Value>) -> Vec<String> {
    let all = volumes.and_then(Value::as_array).into_iter().flatten();
    let named = all.map(|volume| (volume["name"].as_str().unwrap_or_default(), volume));
    named
        .filter(|(name, volume)| is_token(name, volume))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// The volume with the names of the copies.
fn with_copies(mut volume: Value, home: &str) -> Value {
    name_copy(volume.get_mut("configMap"), home);
    let sources = volume
        .pointer_mut("/projected/sources")
        .and_then(Value::as_array_mut);
    for source in sources.into_iter().flatten() {
        name_copy(source.get_mut("configMap"), home);
    }
    volume
}

/// Gives a reference to a `ConfigMap` the name of its copy.
pub(super) fn name_copy(reference: Option<&mut Value>, home: &str) {
    if let Some(reference) = reference
        && let Some(name) = reference["name"].as_str()
    {
        reference["name"] = name_of_copy(Kind::ConfigMap, name, home).into();
    }
}

fn is_token(name: &str, volume: &Value) -> bool {
    let has = |kind: &str| sources(volume).any(|source| source.contains_key(kind));
    let has_other = has("clusterTrustBundle") || has("podCertificate");
    name.starts_with(TOKEN_VOLUME) && has("serviceAccountToken") && !has_other
}

/// Whether a pod with this volume can run only in the home cluster.
pub(super) fn is_homebound(volume: &Value) -> bool {
    let has = |kind: &str| !volume[kind].is_null();
    let name = volume["name"].as_str().unwrap_or_default();
    let mut kinds = sources(volume).flat_map(Map::keys);
    AT_HOME_ONLY.into_iter().any(has)
        || !is_token(name, volume) && kinds.any(|kind| SOURCES_AT_HOME_ONLY.contains(&kind.as_str()))
}

fn sources(volume: &Value) -> impl Iterator<Item = &Map<String, Value>> {
    let sources = volume["projected"]["sources"].as_array();
    sources.into_iter().flatten().filter_map(Value::as_object)
}

fn check(name: &str, volume: &Value) -> Result<(), PodRefused> {
    let described = |kind: &str| format!("volumes[{name}].{kind}");
    let kinds = volume.as_object().into_iter().flatten();
    for (kind, _) in kinds.filter(|(kind, value)| *kind != "name" && !value.is_null()) {
        match kind.as_str() {
            "projected" => {
                for source in sources(volume).flat_map(Map::keys) {
                    let source_name = described(&format!("projected.{source}"));
                    match source.as_str() {
                        known if CARRIED_SOURCES.contains(&known) => {}
                        known if SOURCES_AT_HOME_ONLY.contains(&known) => {
                            return Err(PodRefused::AtHomeOnly(source_name));
                        }
                        _ => return Err(PodRefused::Unknown(source_name)),
                    }
                }
            }
            known if CARRIED.contains(&known) => {}
            known if AT_HOME_ONLY.contains(&known) => return Err(PodRefused::AtHomeOnly(described(kind))),
            _ => return Err(PodRefused::Unknown(described(kind))),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of_home() -> RemoteSettings {
        RemoteSettings {
            home: "home".into(),
            claims: [("data".to_owned(), "prime".to_owned())].into(),
            ..RemoteSettings::default()
        }
    }

    fn refused(volume: &Value) -> PodRefused {
        remote(Some(&json!([volume])), &of_home()).unwrap_err()
    }

    #[test]
    fn each_kind_has_its_rule() {
        let carried = json!([
            {"name": "a", "emptyDir": {}},
            {"name": "b", "nfs": {"server": "nas", "path": "/"}},
            {"name": "c", "projected": {"sources": [{"secret": {"name": "s"}}, {"downwardAPI": {}}]}},
        ]);
        assert_eq!(remote(Some(&carried), &of_home()), Ok((carried.clone(), vec![])));
        let at_home = |what: &str| PodRefused::AtHomeOnly(what.into());
        assert_eq!(
            refused(&json!({"name": "a", "hostPath": {"path": "/"}})),
            at_home("volumes[a].hostPath")
        );
        assert_eq!(
            refused(&json!({"name": "a", "ephemeral": {"x": 1}})),
            at_home("volumes[a].ephemeral")
        );
        let token = json!({"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}});
        assert_eq!(
            refused(&token),
            at_home("volumes[t].projected.serviceAccountToken")
        );
        let new = json!({"name": "n", "quantum": {"x": 1}});
        assert_eq!(refused(&new), PodRefused::Unknown("volumes[n].quantum".into()));
    }

    #[test]
    fn certificates_of_home_are_the_copy() {
        let certificates = json!({"name": "kube-root-ca.crt"});
        let volumes = json!([
            {"name": "a", "configMap": certificates},
            {"name": "b", "projected": {"sources": [{"configMap": certificates}, {"secret": {"name": "s"}}]}},
        ]);
        let (made, _) = remote(Some(&volumes), &of_home()).unwrap();
        let copy = name_of_copy(Kind::ConfigMap, "kube-root-ca.crt", "home");
        assert_ne!(copy, "kube-root-ca.crt");
        assert_eq!(made[0]["configMap"]["name"], copy);
        assert_eq!(made[1]["projected"]["sources"][0]["configMap"]["name"], copy);
        assert_eq!(
            made[1]["projected"]["sources"][1],
            json!({"secret": {"name": "s"}})
        );
    }

    #[test]
    fn a_claim_has_the_name_of_its_twin() {
        let claim = |name: &str| json!([{"name": "v", "persistentVolumeClaim": {"claimName": name, "readOnly": true}}]);
        let made = |name: &str| remote(Some(&claim(name)), &of_home()).unwrap().0;
        assert_eq!(made("data"), claim("prime"));
        assert_eq!(made("other"), claim("other"));
    }

    #[test]
    fn only_mounted_tokens_are_left_out_in_silence() {
        let named = json!({"name": "kube-api-access-mine", "emptyDir": {}});
        assert_eq!(
            remote(Some(&json!([named])), &of_home()).unwrap().1,
            Vec::<String>::new()
        );
    }
}
