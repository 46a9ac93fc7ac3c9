//! A remembered refusal: a remote cluster refused a twin a moment ago, because of a quota, a limit, an
//! admission policy, or a full driver. The scheduler has no memory and would send the pod straight back, so
//! the published capacity takes refusals into account.
//!
//! A refusal affects every user of the virtual class. So refusals are never stored where users can write, see
//! `twin::refusals`.

use serde::{Deserialize, Serialize};

use super::{ClusterId, digest::digest};

/// How many seconds a refusal counts: quotas change without a notification.
const REFUSAL_SECONDS: i64 = 120;
const KEY_DIGITS: usize = 20;

/// The refused volume, and until when the refusal counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    class: String,
    cluster: String,
    pub bytes: u64,
    /// Seconds since 1970.
    pub until: i64,
}

impl Refused {
    /// A refusal at this time, in seconds since 1970.
    #[must_use]
    pub fn new(class: &str, cluster: &ClusterId, bytes: u64, now: i64) -> Self {
        Self {
            class: class.to_owned(),
            cluster: cluster.to_string(),
            bytes,
            until: now + REFUSAL_SECONDS,
        }
    }

    /// The key under which it is stored: one for each class, cluster and power of two of the size, so that
    /// many refused claims result in few entries.
    #[must_use]
    pub fn key(&self) -> String {
        let magnitude = self.bytes.checked_ilog2().unwrap_or_default().to_string();
        digest(KEY_DIGITS, [self.class.as_str(), &self.cluster, &magnitude])
    }

    /// Parses an entry; an unreadable one is ignored.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether it is about this class in this cluster.
    #[must_use]
    pub fn is_about(&self, class: &str, cluster: &ClusterId) -> bool {
        self.class == class && self.cluster == cluster.as_str()
    }

    /// Whether the refusal has not expired. One from a clock that is far ahead is ignored.
    #[must_use]
    pub fn counts(&self, now: i64) -> bool {
        (1..=REFUSAL_SECONDS).contains(&self.until.saturating_sub(now))
    }

    /// Whether it includes a new refusal of the same key, and does not expire soon.
    #[must_use]
    pub fn covers(&self, new: &Self) -> bool {
        self.bytes <= new.bytes && self.counts(new.until - REFUSAL_SECONDS / 2)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = serde_json::to_string(self).map_err(|_| std::fmt::Error)?;
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: &str) -> ClusterId {
        id.parse().unwrap()
    }

    #[test]
    fn a_refusal_counts_only_for_its_class_and_cluster_and_expires() {
        let new = Refused::new("liqo", &id("milan"), 5, 1000);
        let refused = Refused::parse(&new.to_string()).unwrap();
        assert_eq!(refused, new);
        assert!(refused.is_about("liqo", &id("milan")));
        assert!(!refused.is_about("liqo", &id("rome")) && !refused.is_about("other", &id("milan")));
        assert!(refused.counts(1000) && refused.counts(1000 + REFUSAL_SECONDS - 1));
        assert!(!refused.counts(1000 + REFUSAL_SECONDS));
        // From a clock that is far ahead.
        assert!(!refused.counts(999));
        assert_eq!(Refused::parse("{}"), None);
    }

    #[test]
    fn refusals_of_similar_sizes_share_a_key_and_are_rarely_rewritten() {
        let refused = |bytes, now| Refused::new("liqo", &id("milan"), bytes, now);
        assert_eq!(refused(1024, 0).key(), refused(2047, 9).key());
        assert_ne!(refused(1024, 0).key(), refused(2048, 0).key());
        assert_ne!(
            refused(1024, 0).key(),
            Refused::new("x", &id("milan"), 1024, 0).key()
        );
        assert!(refused(0, 0).key().len() == KEY_DIGITS);

        let known = refused(1500, 0);
        assert!(known.covers(&refused(1500, 30)) && known.covers(&refused(1600, 30)));
        assert!(!known.covers(&refused(1400, 30)), "a smaller one covers more");
        assert!(!known.covers(&refused(1500, 90)), "it ends soon");
    }
}
