//! Which labels and annotations of a claim its twin carries, and how they are kept in sync. Backup tools,
//! cost reports and real drivers read them on the twin.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Marks, digest::digest, mark};

type Map = BTreeMap<String, String>;

/// Domains of keys that concern the claim itself, never its twin.
const OWN_MEANING: [&str; 5] = [
    // Kubernetes acts on them; `volume.beta.kubernetes.io/storage-class` would even override the class.
    "kubernetes.io",
    "k8s.io",
    // Ours and Liqo's: a copy could mark a twin as that of another volume.
    "liqo.io",
    // Kosmos writes changes of a claim with its mark back to the claim at home.
    "kosmos.io",
    "kosmos-io",
];

/// Domains of keys by which deployment tools recognise their objects. The tools would prune a twin with such
/// a key, as an object missing from their sources. (The keys of applysets and Helm's `managed-by` are in
/// Kubernetes' own domain.)
const OWNERSHIP: [&str; 8] = [
    "argoproj.io",
    "configmanagement.gke.io",
    "configsync.gke.io",
    "fluxcd.io",
    "helm.sh",
    "kapp.k14s.io",
    "objectset.rio.cattle.io",
    "fleet.cattle.io",
];

/// The annotations that are carried to twins: those in the operator's list. Real drivers and provisioners act
/// on annotations, and at home they see the twins of all users in one namespace, so no other annotation is
/// carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarriedAnnotations(Vec<String>);

impl CarriedAnnotations {
    /// Annotations with these keys; a key that ends with `*` is a prefix.
    #[must_use]
    pub fn new(keys: impl IntoIterator<Item = String>) -> Self {
        Self(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    /// The metadata that the twin of a claim with this metadata carries.
    #[must_use]
    pub fn carried(&self, labels: &Map, annotations: &Map) -> Carried {
        let mut annotations = annotations.clone();
        annotations.retain(|key, _| self.lists(key));
        Carried::of(labels, &annotations)
    }

    fn lists(&self, key: &str) -> bool {
        self.0.iter().any(|listed| match listed.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => listed == key,
        })
    }
}

/// The metadata of a claim that its twin carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    pub labels: Map,
    pub annotations: Map,
}

/// A merge patch of metadata: `None` removes a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetadataChanges {
    pub labels: BTreeMap<String, Option<String>>,
    pub annotations: BTreeMap<String, Option<String>>,
}

impl MetadataChanges {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.annotations.is_empty()
    }
}

/// The keys that a twin carries, as recorded on it.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct Record {
    labels: Vec<String>,
    annotations: Vec<String>,
}

impl Record {
    fn read(annotations: &Map) -> Self {
        let text = annotations.get(mark::CARRIED);
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }
}

impl Carried {
    /// All of this metadata that may be carried.
    #[must_use]
    pub fn of(labels: &Map, annotations: &Map) -> Self {
        let carried = |map: &Map| {
            map.iter()
                .filter(|(key, _)| is_carried(key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        Self {
            labels: carried(labels),
            annotations: carried(annotations),
        }
    }

    /// Labels and annotations of a new twin: the carried ones, overridden by ours.
    #[must_use]
    pub fn with(&self, marks: &Marks) -> (Map, Map) {
        let mut labels = self.labels.clone();
        labels.extend(marks.labels());
        let mut annotations = self.annotations.clone();
        annotations.extend(marks.annotations());
        annotations.extend(self.record());
        (labels, annotations)
    }

    /// What a twin carries, according to its record.
    #[must_use]
    pub fn on_twin(labels: &Map, annotations: &Map) -> Self {
        let record = Record::read(annotations);
        let present = |map: &Map, keys: Vec<String>| {
            let known = keys.into_iter().filter(|key| is_carried(key));
            known
                .filter_map(|key| map.get_key_value(&key))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect()
        };
        Self {
            labels: present(labels, record.labels),
            annotations: present(annotations, record.annotations),
        }
    }

    /// A digest of this metadata: claim and twin are in sync when theirs are equal.
    #[must_use]
    pub fn digest(&self) -> String {
        let parts = |map: &Map| -> Vec<String> {
            let pairs = map.iter().flat_map(|(key, value)| [key.clone(), value.clone()]);
            [map.len().to_string()].into_iter().chain(pairs).collect()
        };
        let all = [parts(&self.labels), parts(&self.annotations)].concat();
        digest(16, all.iter().map(String::as_str))
    }

    /// The changes that make a twin carry this, and remove what was carried before and is no longer on the
    /// claim. Keys of others stay.
    #[must_use]
    pub fn changes(&self, labels: &Map, annotations: &Map) -> MetadataChanges {
        let before = Record::read(annotations);
        let mut changes = MetadataChanges {
            labels: differences(labels, &self.labels, &before.labels),
            annotations: differences(annotations, &self.annotations, &before.annotations),
        };
        let record = self.record();
        match (annotations.get(mark::CARRIED), record) {
            (Some(_), None) => {
                changes.annotations.insert(mark::CARRIED.to_owned(), None);
            }
            (old, Some((key, new))) if old != Some(&new) => {
                changes.annotations.insert(key, Some(new));
            }
            _ => {}
        }
        changes
    }

    fn record(&self) -> Option<(String, String)> {
        if self.labels.is_empty() && self.annotations.is_empty() {
            return None;
        }
        let record = Record {
            labels: self.labels.keys().cloned().collect(),
            annotations: self.annotations.keys().cloned().collect(),
        };
        let text = serde_json::to_string(&record).ok()?;
        Some((mark::CARRIED.to_owned(), text))
    }
}

fn differences(now: &Map, wanted: &Map, before: &[String]) -> BTreeMap<String, Option<String>> {
    let gone = before
        .iter()
        // Others may write to the record, so keys that are never carried are ignored in it.
        .filter(|key| is_carried(key) && !wanted.contains_key(*key) && now.contains_key(*key))
        .map(|key| (key.clone(), None));
    let changed = wanted
        .iter()
        .filter(|(key, value)| now.get(*key) != Some(value))
        .map(|(key, value)| (key.clone(), Some(value.clone())));
    gone.chain(changed).collect()
}

fn is_carried(key: &str) -> bool {
    !OWN_MEANING
        .iter()
        .chain(&OWNERSHIP)
        .any(|left_behind| has_domain(key, left_behind))
}

/// Whether deployment tools recognise their objects by this key.
#[must_use]
pub fn marks_ownership(key: &str) -> bool {
    OWNERSHIP.iter().any(|owner| has_domain(key, owner))
}

/// Whether the domain of the key of a label or annotation is `parent` or below it.
#[must_use]
pub fn has_domain(key: &str, parent: &str) -> bool {
    let above = key
        .split_once('/')
        .and_then(|(domain, _)| domain.strip_suffix(parent));
    above.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*};

    use super::*;
    use crate::volume::Epoch;
    use crate::volume::VolumeName;

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn keys_of_kubernetes_drivers_and_deployment_tools_are_not_carried() {
        for key in [
            "volume.beta.kubernetes.io/storage-class",
            "kubernetes.io/metadata.name",
            "app.kubernetes.io/managed-by",
            "applyset.kubernetes.io/part-of",
            "config.k8s.io/owning-inventory",
            "storage.liqo.io/handed-over",
            "liqo.io/remote-storage-class",
            "kosmos.io/global",
            "kosmos-io/cluster-owners",
            "argocd.argoproj.io/tracking-id",
            "argocd.argoproj.io/instance",
            "kustomize.toolkit.fluxcd.io/name",
            "configmanagement.gke.io/managed",
            "configsync.gke.io/resource-id",
            "helm.sh/chart",
            "meta.helm.sh/release-name",
            "kapp.k14s.io/app",
            "objectset.rio.cattle.io/hash",
        ] {
            assert!(!is_carried(key), "{key}");
        }
        for key in [
            "app",
            "team.example.com/cost",
            "notkubernetes.io/x",
            "backup.velero.io/id",
        ] {
            assert!(is_carried(key), "{key}");
        }
    }

    fn marks() -> Marks {
        Marks {
            home: "home".parse().unwrap(),
            volume: VolumeName::from_request("x"),
            claim: None,
            request_name: "x".into(),
            fingerprint: None,
            handed_over: true,
            epoch: Epoch::NEVER_MOVED,
        }
    }

    #[test]
    fn only_listed_annotations_are_carried() {
        let (labels, annotations) = (
            map(&[("app", "shop")]),
            map(&[
                ("team", "blue"),
                ("backup.example.com/id", "7"),
                ("nfs.io/storage-path", "theirs"),
                ("storage.liqo.io/handed-over", "true"),
            ]),
        );
        let carried = |keys: &[&str]| {
            let listed = CarriedAnnotations::new(keys.iter().map(|&key| key.to_owned()));
            let carried = listed.carried(&labels, &annotations);
            assert_eq!(carried.labels, labels, "labels always are");
            carried.annotations.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(carried(&[]), [""; 0]);
        assert_eq!(carried(&[""]), [""; 0]);
        assert_eq!(carried(&["team", "other"]), ["team"]);
        assert_eq!(carried(&["backup.example.com/*"]), ["backup.example.com/id"]);
        let all = ["backup.example.com/id", "nfs.io/storage-path", "team"];
        assert_eq!(carried(&["*"]), all, "but never what is ours");
    }

    #[test]
    fn annotations_no_longer_listed_are_removed_from_the_twin() {
        let note = map(&[("note", "a")]);
        let (labels, annotations) = Carried::of(&Map::new(), &note).with(&marks());
        let now = CarriedAnnotations::default().carried(&Map::new(), &note);
        assert_ne!(Carried::on_twin(&labels, &annotations).digest(), now.digest());
        let changes = now.changes(&labels, &annotations).annotations;
        assert_eq!(changes["note"], None);
    }

    #[test]
    fn our_marks_overwrite_carried_keys() {
        // Impossible through `of`, but a manually created `Carried` must not win either.
        let carried = Carried {
            labels: map(&[(mark::VOLUME, "stolen"), ("app", "shop")]),
            annotations: map(&[(mark::REQUEST_NAME, "stolen")]),
        };
        let (labels, annotations) = carried.with(&marks());
        assert_eq!(labels[mark::VOLUME], marks().volume.as_str());
        assert_eq!(labels["app"], "shop");
        assert_eq!(annotations[mark::REQUEST_NAME], "x");
    }

    #[test]
    fn changes_of_the_claim_reach_the_twin_and_nothing_else_is_touched() {
        let before = Carried::of(&map(&[("app", "shop"), ("tier", "gold")]), &map(&[("note", "a")]));
        let (mut labels, annotations) = before.with(&marks());
        labels.insert("theirs".into(), "kept".into());

        let after = Carried::of(&map(&[("app", "bank")]), &map(&[("note", "a")]));
        let changes = after.changes(&labels, &annotations);
        assert_eq!(
            changes.labels,
            [
                ("app".to_owned(), Some("bank".to_owned())),
                ("tier".to_owned(), None)
            ]
            .into()
        );
        let touched: Vec<_> = changes.annotations.keys().collect();
        assert_eq!(touched, [mark::CARRIED]);
    }

    #[test]
    fn a_forged_record_removes_none_of_our_marks() {
        let (labels, mut annotations) = Carried::default().with(&marks());
        let forged = format!(r#"{{"labels":["{}"],"annotations":[]}}"#, mark::VOLUME);
        annotations.insert(mark::CARRIED.into(), forged);
        let changes = Carried::default().changes(&labels, &annotations);
        assert!(changes.labels.is_empty());
        assert_eq!(changes.annotations, [(mark::CARRIED.to_owned(), None)].into());
    }

    fn apply(map: &mut Map, changes: BTreeMap<String, Option<String>>) {
        for (key, value) in changes {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
    }

    fn metadata() -> impl Strategy<Value = Map> {
        btree_map("[ab]|[ab]/[cd]|helm.sh/[ab]|storage.liqo.io/volume", "[xy]", 0..6)
    }

    proptest! {
        /// A synchronised twin equals one that is created from the current claim.
        #[test]
        fn a_synchronised_twin_equals_a_new_one(
            old_labels in metadata(), old_annotations in metadata(),
            labels in metadata(), annotations in metadata(),
        ) {
            let (mut twin_labels, mut twin_annotations) =
                Carried::of(&old_labels, &old_annotations).with(&marks());
            let now = Carried::of(&labels, &annotations);
            let changes = now.changes(&twin_labels, &twin_annotations);
            let in_sync = Carried::on_twin(&twin_labels, &twin_annotations).digest() == now.digest();
            prop_assert_eq!(in_sync, changes.is_empty());
            apply(&mut twin_labels, changes.labels);
            apply(&mut twin_annotations, changes.annotations);
            prop_assert!(now.changes(&twin_labels, &twin_annotations).is_empty());
            prop_assert_eq!((twin_labels, twin_annotations), now.with(&marks()));
        }
    }
}
