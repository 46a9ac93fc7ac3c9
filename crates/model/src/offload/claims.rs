//! The claims of a remote namespace that is unoffloaded: which of them block its deletion, because their data
//! would be lost.

/// What happens to the claims of a namespace that is unoffloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Volumes {
    /// Every claim blocks the deletion of the namespace until the claim is deleted.
    #[default]
    Hold,
    /// Twins are deleted with their claims at home, claims of others with the namespace.
    Delete,
    /// Twins are deleted with the namespace; their data is retained there for the next offloading.
    Retain,
}

impl Volumes {
    /// Parses the annotation of a `NamespaceOffloading`.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match text {
            "Delete" => Self::Delete,
            "Retain" => Self::Retain,
            _ => Self::Hold,
        }
    }

    /// The value of that annotation; none for the default.
    #[must_use]
    pub const fn written(self) -> Option<&'static str> {
        match self {
            Self::Hold => None,
            Self::Delete => Some("Delete"),
            Self::Retain => Some("Retain"),
        }
    }

    /// Whether a claim may be deleted together with its namespace.
    #[must_use]
    pub const fn may_delete(self, claim: &Claim) -> bool {
        match self {
            Self::Hold => false,
            // If the class has the policy Retain, nothing deletes the twin after its claim at home
            // was deleted.
            Self::Delete => !claim.is_twin || (claim.leaving && claim.retained),
            Self::Retain => claim.is_twin && claim.retained,
        }
    }
}

/// A claim in the remote namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name: the same as that of the claim at home whose twin it is.
    pub name: String,
    /// Whether this driver created it as a twin.
    pub is_twin: bool,
    /// The `PersistentVolume` at home of which it is the twin.
    pub volume: Option<String>,
    /// Whether the claim at home is being deleted, deleted, or replaced by another of the same name.
    pub leaving: bool,
    /// Whether the remote `PersistentVolume` is bound to it and outlives it; read only if [`Volumes`] depends
    /// on it.
    pub retained: bool,
}

impl Claim {
    /// Its name in messages for the user.
    pub(super) fn described(&self, volumes: Volumes) -> String {
        let name = &self.name;
        match volumes {
            _ if !self.is_twin => format!("{name} (not a twin)"),
            Volumes::Retain if !self.retained => {
                format!("{name} (its remote PersistentVolume is not retained yet)")
            }
            Volumes::Delete if !self.leaving => format!("{name} (its claim at home still exists)"),
            Volumes::Hold | Volumes::Delete | Volumes::Retain => name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_deleted_with_their_namespace_only_as_requested() {
        for (is_twin, leaving, retained) in [
            (false, false, false),
            (false, false, true),
            (true, false, false),
            (true, false, true),
            (true, true, false),
            (true, true, true),
        ] {
            let claim = Claim {
                name: "data".into(),
                is_twin,
                volume: None,
                leaving,
                retained,
            };
            assert!(!Volumes::Hold.may_delete(&claim), "{claim:?}");
            // The data of a twin is never deleted with the namespace.
            let safe = is_twin && retained;
            assert_eq!(Volumes::Retain.may_delete(&claim), safe, "{claim:?}");
            let deleted = !is_twin || (leaving && retained);
            assert_eq!(Volumes::Delete.may_delete(&claim), deleted, "{claim:?}");
        }
    }

    #[test]
    fn the_handling_of_volumes_survives_the_round_trip() {
        for volumes in [Volumes::Hold, Volumes::Delete, Volumes::Retain] {
            assert_eq!(Volumes::read(volumes.written().unwrap_or_default()), volumes);
        }
        assert_eq!(Volumes::read("delete everything"), Volumes::Hold);
    }
}
