//! Services at home with pods to which there is no route: which of them get an event, once each time that
//! this begins.

use std::collections::{BTreeMap, BTreeSet};

/// Labels, or a selector.
pub type Labels = BTreeMap<String, String>;

/// The Services of one cluster's pods, by namespace, with the pods there that they select.
#[derive(Clone, Debug, Default)]
pub struct Unreached(BTreeMap<String, Services>);

#[derive(Clone, Debug, Default)]
struct Services {
    by_name: BTreeMap<String, Selected>,
    changes: u64,
}

#[derive(Clone, Debug)]
struct Selected {
    selector: Labels,
    pods: BTreeSet<String>,
}

impl Unreached {
    /// Records a Service; `None` if it was deleted or has no selector. `pods` are all pods of its namespace
    /// in the cluster. Returns whether to emit an event for it.
    pub fn note_service<'a>(
        &mut self,
        namespace: &str,
        name: &str,
        selector: Option<&Labels>,
        pods: impl Iterator<Item = (String, &'a Labels)>,
    ) -> bool {
        let services = self.0.entry(namespace.to_owned()).or_default();
        let before = services.by_name.remove(name);
        let selected_any = before.is_some_and(|before| !before.pods.is_empty());
        services.changes += u64::from(selected_any);
        // The endpoints of a Service without a selector are managed by others.
        let Some(selector) = selector.filter(|it| !it.is_empty()) else {
            return false;
        };
        let selected = pods.filter(|(_, labels)| selects(selector, labels));
        let selected = Selected {
            pods: selected.map(|(pod, _)| pod).collect(),
            selector: selector.clone(),
        };
        let selects_any = !selected.pods.is_empty();
        services.changes += u64::from(selects_any);
        services.by_name.insert(name.to_owned(), selected);
        selects_any && !selected_any
    }

    /// Records a pod: its labels if it runs in the cluster. Returns the Services to emit an event for.
    pub fn note_pod(&mut self, namespace: &str, name: &str, labels: Option<&Labels>) -> Vec<String> {
        let mut news = Vec::new();
        let Some(services) = self.0.get_mut(namespace) else {
            return news;
        };
        for (service, selected) in &mut services.by_name {
            let selected_any = !selected.pods.is_empty();
            if labels.is_some_and(|labels| selects(&selected.selector, labels)) {
                selected.pods.insert(name.to_owned());
                if !selected_any {
                    news.push(service.clone());
                }
            } else {
                selected.pods.remove(name);
            }
            services.changes += u64::from(selected_any == selected.pods.is_empty());
        }
        news
    }

    /// Counts the changes of the result of [`Self::selects_any`] for a namespace; it may also count
    /// other changes.
    #[must_use]
    pub fn changes(&self, namespace: &str) -> u64 {
        self.0.get(namespace).map_or(0, |services| services.changes)
    }

    /// Whether the Service selects a pod in the cluster.
    #[must_use]
    pub fn selects_any(&self, namespace: &str, service: &str) -> bool {
        let services = self.0.get(namespace);
        let selected = services.and_then(|services| services.by_name.get(service));
        selected.is_some_and(|it| !it.pods.is_empty())
    }

    #[must_use]
    pub fn services(&self, namespace: &str) -> Vec<String> {
        let services = self.0.get(namespace).into_iter();
        services
            .flat_map(|services| services.by_name.keys().cloned())
            .collect()
    }

    /// Drops all other namespaces.
    pub fn keep_namespaces(&mut self, which: impl Fn(&str) -> bool) {
        self.0.retain(|namespace, _| which(namespace));
    }
}

fn selects(selector: &Labels, labels: &Labels) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        let pairs = pairs.iter();
        pairs
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn a_service_is_reported_once_for_unreachable_pods() {
        let (web, other) = (labels(&[("app", "web"), ("tier", "b")]), labels(&[("app", "db")]));
        let selector = labels(&[("app", "web")]);
        let mut known = Unreached::default();
        let none = || std::iter::empty();
        assert!(!known.note_service("shop", "web", Some(&selector), none()));
        assert!(!known.note_service("shop", "external", Some(&labels(&[])), none()));
        assert!(known.note_pod("shop", "db-0", Some(&other)).is_empty());
        assert!(known.note_pod("else", "web-0", Some(&web)).is_empty());
        assert!(!known.selects_any("shop", "web"));
        assert_eq!(known.note_pod("shop", "web-0", Some(&web)), ["web"]);
        assert!(known.selects_any("shop", "web") && !known.selects_any("shop", "external"));
        let changes = known.changes("shop");
        assert!(
            known.note_pod("shop", "web-0", Some(&web)).is_empty(),
            "the event was emitted before"
        );
        assert!(known.note_pod("shop", "web-1", Some(&web)).is_empty());
        assert_eq!(known.changes("shop"), changes);
        for gone in ["web-0", "web-1"] {
            known.note_pod("shop", gone, None);
        }
        assert!(known.changes("shop") > changes && !known.selects_any("shop", "web"));
        assert_eq!(known.note_pod("shop", "web-2", Some(&web)), ["web"]);
    }

    #[test]
    fn a_later_or_changed_service_is_reported_for_existing_pods() {
        let web = labels(&[("app", "web")]);
        let pods = || [("web-0".to_owned(), &web)].into_iter();
        let mut known = Unreached::default();
        assert!(!known.note_service("shop", "web", Some(&labels(&[("app", "db")])), pods()));
        assert!(known.note_service("shop", "web", Some(&web), pods()));
        assert!(!known.note_service("shop", "web", Some(&web), pods()));
        assert!(!known.note_service("shop", "web", None, pods()));
        assert!(known.services("shop").is_empty());
        assert!(known.note_service("shop", "web", Some(&web), pods()));
        known.keep_namespaces(|_| false);
        assert!(known.note_pod("shop", "web-1", Some(&web)).is_empty());
    }
}
