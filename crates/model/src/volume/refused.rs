//! A note that a remote cluster did not take a twin a moment ago: a quota, a limit,
//! an admission policy, a full driver. The scheduler has no memory and would send the
//! pod straight back, so the capacity that it is shown takes the notes into account.
//!
//! What a note says holds for every user of the virtual class. So notes are never
//! kept where users can write, see `twin::refusals`.

use serde::{Deserialize, Serialize};

use super::{ClusterId, digest::digest};

/// How many seconds a refusal counts: quotas change, and nobody tells.
const COUNTS: i64 = 120;
const KEY_DIGITS: usize = 20;

/// What was refused, and until when that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The virtual class.
    class: String,
    /// The remote cluster.
    cluster: String,
    /// Size of the volume.
    pub bytes: u64,
    /// Seconds since 1970.
    pub until: i64,
}

impl Refused {
    /// A refusal of this moment, in seconds since 1970.
    #[must_use]
    pub fn new(class: &str, cluster: &ClusterId, bytes: u64, now: i64) -> Self {
        Self {
            class: class.to_owned(),
            cluster: cluster.to_string(),
            bytes,
            until: now + COUNTS,
        }
    }

    /// Under which key it is noted: one for each class, cluster and power of two of the
    /// size, so that however many claims are refused, few notes are kept.
    #[must_use]
    pub fn key(&self) -> String {
        let magnitude = self.bytes.checked_ilog2().unwrap_or_default().to_string();
        digest(KEY_DIGITS, [self.class.as_str(), &self.cluster, &magnitude])
    }

    /// Reads a note; what cannot be read says nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether it is about this class in this cluster.
    #[must_use]
    pub fn is_about(&self, class: &str, cluster: &ClusterId) -> bool {
        self.class == class && self.cluster == cluster.as_str()
    }

    /// Whether it counts at this time. One from a clock that is far ahead does not.
    #[must_use]
    pub fn counts(&self, now: i64) -> bool {
        (1..=COUNTS).contains(&self.until.saturating_sub(now))
    }

    /// Whether it says as much as a new one of the same key, and will for some time.
    #[must_use]
    pub fn covers(&self, new: &Self) -> bool {
        self.bytes <= new.bytes && self.counts(new.until - COUNTS / 2)
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
    fn a_refusal_counts_for_its_class_and_cluster_and_for_a_while() {
        let new = Refused::new("liqo", &id("milan"), 5, 1000);
        let refused = Refused::parse(&new.to_string()).unwrap();
        assert_eq!(refused, new);
        assert!(refused.is_about("liqo", &id("milan")));
        assert!(!refused.is_about("liqo", &id("rome")) && !refused.is_about("other", &id("milan")));
        assert!(refused.counts(1000) && refused.counts(1000 + COUNTS - 1));
        assert!(!refused.counts(1000 + COUNTS));
        // Noted by a clock that is far ahead.
        assert!(!refused.counts(999));
        assert_eq!(Refused::parse("{}"), None);
    }

    #[test]
    fn few_notes_are_kept_and_rarely_written() {
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
        assert!(!known.covers(&refused(1400, 30)), "a smaller one says more");
        assert!(!known.covers(&refused(1500, 90)), "it ends soon");
    }
}
