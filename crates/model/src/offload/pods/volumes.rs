//! Which volumes of a home pod its remote pod has.

use serde_json::{Map, Value};

use super::{PodRefused, RemoteSettings};
use crate::offload::reflection::{Kind, name_of_copy};

/// The API server adds a volume with such a name, for the token of the pod's service account.
pub(super) const TOKEN_VOLUME: &str = "kube-api-access-";
/// Where it mounts the volume.
pub(super) const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// The certificates in it. The second is added by `OpenShift`.
pub(super) const TOKEN_CERTIFICATES: [&str; 2] = ["kube-root-ca.crt", "openshift-service-ca.crt"];

/// How a kind of volume works in another cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum VolumeSupport {
    /// Unchanged: the objects that it names are copied, exist there under the same name, or are
    /// outside of both clusters.
    TheSame,
    /// Unchanged, with a Secret of the pod's namespace, which is copied: the JSON pointer to its
    /// name. Kubelets need it to mount the volume.
    WithSecret(&'static str),
    /// Only at home: `ephemeral` makes Kubernetes create a claim at home, the others use what is
    /// installed on the nodes.
    AtHomeOnly,
}

const BY_REFERENCE: VolumeSupport = VolumeSupport::WithSecret("/secretRef/name");

/// All kinds but `projected`. The API still has kinds that no kubelet mounts any more; their pods wait there as here.
const KINDS: [(&str, VolumeSupport); 29] = [
    ("awsElasticBlockStore", VolumeSupport::TheSame),
    ("azureDisk", VolumeSupport::TheSame),
    ("azureFile", VolumeSupport::WithSecret("/secretName")),
    ("cephfs", BY_REFERENCE),
    ("cinder", BY_REFERENCE),
    ("configMap", VolumeSupport::TheSame),
    ("csi", VolumeSupport::WithSecret("/nodePublishSecretRef/name")),
    ("downwardAPI", VolumeSupport::TheSame),
    ("emptyDir", VolumeSupport::TheSame),
    ("ephemeral", VolumeSupport::AtHomeOnly),
    ("fc", VolumeSupport::TheSame),
    ("flexVolume", VolumeSupport::AtHomeOnly),
    ("flocker", VolumeSupport::TheSame),
    ("gcePersistentDisk", VolumeSupport::TheSame),
    ("gitRepo", VolumeSupport::AtHomeOnly),
    ("glusterfs", VolumeSupport::TheSame),
    ("hostPath", VolumeSupport::AtHomeOnly),
    ("image", VolumeSupport::TheSame),
    ("iscsi", BY_REFERENCE),
    ("nfs", VolumeSupport::TheSame),
    ("persistentVolumeClaim", VolumeSupport::TheSame),
    ("photonPersistentDisk", VolumeSupport::TheSame),
    ("portworxVolume", VolumeSupport::TheSame),
    ("quobyte", VolumeSupport::TheSame),
    ("rbd", BY_REFERENCE),
    ("scaleIO", BY_REFERENCE),
    ("secret", VolumeSupport::TheSame),
    ("storageos", BY_REFERENCE),
    ("vsphereVolume", VolumeSupport::TheSame),
];
/// Kinds of volumes whose data last no longer than the pod, or that no pod writes.
const WITHOUT_DATA: [&str; 7] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "image",
    "projected",
    "secret",
];
/// Sources of a projected volume that exist only in the home cluster.
pub(super) const SOURCES_AT_HOME_ONLY: [&str; 3] =
    ["clusterTrustBundle", "podCertificate", "serviceAccountToken"];
/// Allowed sources of a projected volume.
const CARRIED_SOURCES: [&str; 3] = ["configMap", "downwardAPI", "secret"];

/// The volumes of the remote pod of a home pod with this spec. Those with the token of its service account have
/// only the namespace.
pub(super) fn remote(spec: &Value, settings: &RemoteSettings) -> Result<Value, PodRefused> {
    let mut kept = Vec::new();
    for volume in all(spec) {
        if is_token(volume, spec) {
            kept.push(only_namespace(volume.clone()));
            continue;
        }
        check(volume["name"].as_str().unwrap_or_default(), volume)?;
        let mut volume = with_copies(volume.clone(), &settings.home);
        if let Some(claim) = volume.pointer_mut("/persistentVolumeClaim/claimName")
            && let Some(name) = claim.as_str().and_then(|name| settings.claims.get(name))
        {
            *claim = name.as_str().into();
        }
        kept.push(volume);
    }
    Ok(kept.into())
}

/// The volumes that Kubernetes has not added for a token.
pub(super) fn without_tokens(spec: &Value) -> Vec<&Value> {
    all(spec).filter(|volume| !is_token(volume, spec)).collect()
}

/// Whether Kubernetes has added a volume with a token of the pod's service account.
pub(super) fn has_token(spec: &Value) -> bool {
    all(spec).any(|volume| is_token(volume, spec))
}

/// Whether a volume keeps what the pod writes for later pods.
pub(super) fn keep_data(spec: &Value) -> bool {
    let mut kinds = all(spec).filter_map(Value::as_object).flat_map(Map::keys);
    kinds.any(|kind| kind != "name" && !WITHOUT_DATA.contains(&kind.as_str()))
}

/// The volume of a token without the token and the certificates, which are those of the home cluster. The
/// downward API fills in the namespace there.
fn only_namespace(mut volume: Value) -> Value {
    if let Some(sources) = volume
        .pointer_mut("/projected/sources")
        .and_then(Value::as_array_mut)
    {
        sources.retain(|source| !source["downwardAPI"].is_null());
    }
    volume
}

pub(super) fn all(spec: &Value) -> impl Iterator<Item = &Value> {
    spec["volumes"].as_array().into_iter().flatten()
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

/// Whether the API server has added the volume. A user's own has other sources, or is mounted elsewhere.
fn is_token(volume: &Value, spec: &Value) -> bool {
    let is_known = |source: &Map<String, Value>| {
        let of = |kind: &str| source.get(kind).unwrap_or(&Value::Null);
        let (token, items) = (of("serviceAccountToken"), &of("downwardAPI")["items"]);
        let paths = items.as_array().into_iter().flatten().map(|item| &item["path"]);
        token["path"] == "token" && token["audience"].is_null()
            || paths.eq(["namespace"])
            || TOKEN_CERTIFICATES
                .iter()
                .any(|name| of("configMap")["name"] == *name)
    };
    let has = |kind: &str| sources(volume).any(|source| source.contains_key(kind));
    let containers = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|kind| spec[kind].as_array().into_iter().flatten());
    let mut mounts = containers.flat_map(|one| one["volumeMounts"].as_array().into_iter().flatten());
    let name = volume["name"].as_str().unwrap_or_default();
    name.starts_with(TOKEN_VOLUME)
        && ["serviceAccountToken", "configMap", "downwardAPI"]
            .into_iter()
            .all(has)
        && sources(volume).all(is_known)
        && mounts.all(|mount| mount["name"] != name || mount["mountPath"] == TOKEN_PATH)
}

/// Whether a pod with this spec can run only in the home cluster, because of its volumes.
pub(super) fn are_homebound(spec: &Value) -> bool {
    all(spec).any(|volume| {
        let mut kinds = sources(volume).flat_map(Map::keys);
        at_home_only().any(|kind| !volume[kind].is_null())
            || kinds.any(|kind| SOURCES_AT_HOME_ONLY.contains(&kind.as_str())) && !is_token(volume, spec)
    })
}

/// The kinds that exist only in the home cluster.
pub(super) fn at_home_only() -> impl Iterator<Item = &'static str> {
    let all = KINDS
        .into_iter()
        .filter(|(_, means)| *means == VolumeSupport::AtHomeOnly);
    all.map(|(kind, _)| kind)
}

/// The Secrets that are needed to mount the volume.
pub(super) fn secrets(volume: &Value) -> impl Iterator<Item = &str> {
    KINDS.into_iter().filter_map(move |(kind, means)| match means {
        VolumeSupport::WithSecret(name) => volume[kind].pointer(name)?.as_str(),
        VolumeSupport::TheSame | VolumeSupport::AtHomeOnly => None,
    })
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
            known => match KINDS.iter().find(|(kind, _)| *kind == known) {
                Some((_, VolumeSupport::AtHomeOnly)) => return Err(PodRefused::AtHomeOnly(described(kind))),
                Some(_) => {}
                None => return Err(PodRefused::Unknown(described(kind))),
            },
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

    fn made(volumes: &Value) -> Result<Value, PodRefused> {
        remote(&json!({ "volumes": volumes }), &of_home())
    }

    fn refused(volume: &Value) -> PodRefused {
        made(&json!([volume])).unwrap_err()
    }

    #[test]
    fn each_kind_of_volume_is_carried_or_refused() {
        let carried = json!([
            {"name": "a", "emptyDir": {}},
            {"name": "b", "nfs": {"server": "nas", "path": "/"}},
            {"name": "c", "projected": {"sources": [{"secret": {"name": "s"}}, {"downwardAPI": {}}]}},
        ]);
        assert_eq!(made(&carried), Ok(carried));
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
    fn volumes_with_the_root_certificates_use_the_copied_configmap() {
        let certificates = json!({"name": "kube-root-ca.crt"});
        let volumes = json!([
            {"name": "a", "configMap": certificates},
            {"name": "b", "projected": {"sources": [{"configMap": certificates}, {"secret": {"name": "s"}}]}},
        ]);
        let made = made(&volumes).unwrap();
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
    fn claims_in_volumes_get_the_name_of_their_twin() {
        let claim = |name: &str| json!([{"name": "v", "persistentVolumeClaim": {"claimName": name, "readOnly": true}}]);
        assert_eq!(made(&claim("data")), Ok(claim("prime")));
        assert_eq!(made(&claim("other")), Ok(claim("other")));
    }

    #[test]
    fn only_tokens_that_kubernetes_mounts_are_left_out() {
        let sources = json!([
            {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
        ]);
        let with = |change: &dyn Fn(&mut Value)| {
            let mut spec = json!({
                "containers": [{"volumeMounts": [{"name": "kube-api-access-a", "mountPath": TOKEN_PATH}]}],
                "volumes": [{"name": "kube-api-access-a", "projected": {"sources": sources}}],
            });
            change(&mut spec);
            spec
        };
        for added in [
            with(&|_| {}),
            with(&|spec| {
                let of_openshift = json!({"configMap": {"name": "openshift-service-ca.crt"}});
                let sources = spec["volumes"][0]["projected"]["sources"].as_array_mut();
                sources.unwrap().push(of_openshift);
            }),
        ] {
            let namespace = json!([{"name": "kube-api-access-a", "projected": {"sources": [sources[2]]}}]);
            assert_eq!(remote(&added, &of_home()), Ok(namespace));
            assert!(has_token(&added) && !are_homebound(&added));
        }
        for (of_user, place, value) in [
            ("a name", "/volumes/0/name", json!("token")),
            (
                "a path",
                "/containers/0/volumeMounts/0/mountPath",
                json!("/tokens"),
            ),
            (
                "a file",
                "/volumes/0/projected/sources/0/serviceAccountToken/path",
                json!("mine"),
            ),
            (
                "an audience",
                "/volumes/0/projected/sources/0/serviceAccountToken/audience",
                json!("vault"),
            ),
            (
                "a ConfigMap",
                "/volumes/0/projected/sources/1/configMap/name",
                json!("mine"),
            ),
            (
                "another source",
                "/volumes/0/projected/sources/1",
                json!({"clusterTrustBundle": {}}),
            ),
            (
                "fewer sources",
                "/volumes/0/projected/sources",
                json!([sources[0]]),
            ),
        ] {
            let spec = with(&|spec| {
                let (parent, key) = place.rsplit_once('/').unwrap();
                match spec.pointer_mut(parent).unwrap() {
                    Value::Array(all) => all[key.parse::<usize>().unwrap()] = value.clone(),
                    parent => parent[key] = value.clone(),
                }
            });
            let refused = remote(&spec, &of_home()).unwrap_err();
            assert!(
                refused.to_string().contains("serviceAccountToken"),
                "{of_user}: {refused}"
            );
            assert!(!has_token(&spec) && are_homebound(&spec), "{of_user}");
        }
        let empty = json!([{"name": "kube-api-access-mine", "emptyDir": {}}]);
        assert_eq!(made(&empty), Ok(empty));
    }
}
