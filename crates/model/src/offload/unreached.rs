//! Services at home with pods to which there is no route: which of them get an event, once each time that
//! this begins.

use std::collections::{BTreeMap, BTreeSet};

/// Labels, or a selector.
pub type Labels = BTreeMap<String, String>;

/// The Services of one cluster's pods, by namespace and name, with the pods there that they select.
#[derive(Clone, Debug, Default)]
pub struct Unreached(BTreeMap<String, BTreeMap<String, Selected>>);

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
        let before = services.remove(name);
        // The endpoints of a Service without a selector are managed by others.
        let Some(selector) = selector.filter(|it| !it.is_empty()) else {
            return false;
        };
        let selected = pods.filter(|(_, labels)| selects(selector, labels));
        let selected = Selected {
            pods: selected.map(|(pod, _)| pod).collect(),
            selector: selector.clone(),
        };
        let is_news = !selected.pods.is_empty() && before.is_none_or(|before| before.pods.is_empty());
        services.insert(name.to_owned(), selected);
        is_news
    }

    /// Records a pod: its labels if it runs in the cluster. Returns the Services to emit an event for.
    pub fn note_pod(&mut self, namespace: &str, name: &str, labels: Option<&Labels>) -> Vec<String> {
        let mut news = Vec::new();
        for (service, selected) in self.0.get_mut(namespace).into_iter().flatten() {
            if labels.is_some_and(|labels| selects(&selected.selector, labels)) {
                let is_first = selected.pods.is_empty();
                selected.pods.insert(name.to_owned());
                if is_first {
                    news.push(service.clone());
                }
            } else {
                selected.pods.remove(name);
            }
        }
        news
    }

    /// Whether the Service selects a pod in the cluster.
    #[must_use]
    pub fn selects_any(&self, namespace: &str, service: &str) -> bool {
        let selected = self.0.get(namespace).and_then(|services| services.get(service));
        selected.is_some_and(|it| !it.pods.is_empty())
    }

    #[must_use]
    pub fn services(&self, namespace: &str) -> Vec<String> {
        let services = self.0.get(namespace).into_iter().flatten();
        services.map(|(name, _)| name.clone()).collect()
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
        assert!(
            known.note_pod("shop", "web-0", Some(&web)).is_empty(),
            "the event was emitted before"
        );
        assert!(known.note_pod("shop", "web-1", Some(&web)).is_empty());
        for gone in ["web-0", "web-1"] {
            known.note_pod("shop", gone, None);
        }
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
