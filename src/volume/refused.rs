//! A note on a claim that a remote cluster would not take its twin: a quota, a
//! limit, an admission policy. The scheduler has no memory and would send the pod
//! straight back; what it reads as room there is told with this in mind.

use serde::{Deserialize, Serialize};

use super::ClusterId;

/// No refusal counts longer, in seconds: users can write this annotation too, and
/// it is told to all.
const LONGEST: i64 = 120;

/// What was refused, and until when that counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The cluster.
    cluster: String,
    /// Size of the volume.
    pub bytes: u64,
    /// Seconds since 1970: quotas change, and nobody tells.
    pub until: i64,
}

impl Refused {
    /// A refusal that counts until then.
    #[must_use]
    pub fn new(cluster: &ClusterId, bytes: u64, until: i64) -> Self {
        Self {
            cluster: cluster.to_string(),
            bytes,
            until,
        }
    }

    /// Reads the note; what cannot be read says nothing.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// Whether it counts for this cluster at this time, in seconds since 1970.
    #[must_use]
    pub fn counts(&self, cluster: &ClusterId, now: i64) -> bool {
        let left = self.until.saturating_sub(now);
        self.cluster == cluster.as_str() && (1..=LONGEST).contains(&left)
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

    #[test]
    fn a_refusal_counts_for_its_cluster_and_for_a_while() {
        let (here, there): (ClusterId, ClusterId) = ("milan".parse().unwrap(), "rome".parse().unwrap());
        let refused = Refused::parse(&Refused::new(&here, 5, 100).to_string()).unwrap();
        assert!(refused.counts(&here, 99));
        assert!(!refused.counts(&here, 100) && !refused.counts(&there, 99));
        assert_eq!(Refused::parse("{}"), None);
        for until in [i64::MIN, 99 + LONGEST + 1, i64::MAX] {
            assert!(!Refused::new(&here, 5, until).counts(&here, 99), "{until}");
        }
    }
}
