//! The claims of a remote namespace that is to go: which hold it, because their data would be lost
//! with it.

/// What becomes of the claims of a namespace that is unoffloaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Volumes {
    /// Each holds the namespace until it is gone.
    #[default]
    Hold,
    /// Twins go with their claims at home; those that somebody made there go with the namespace.
    Delete,
    /// Twins go with the namespace, and their data stay there for the next offloading.
    Retain,
}

impl Volumes {
    /// As it is written in the annotation of a `NamespaceOffloading`.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match text {
            "Delete" => Self::Delete,
            "Retain" => Self::Retain,
            _ => Self::Hold,
        }
    }

    /// How it is written there; nothing for the default.
    #[must_use]
    pub const fn written(self) -> Option<&'static str> {
        match self {
            Self::Hold => None,
            Self::Delete => Some("Delete"),
            Self::Retain => Some("Retain"),
        }
    }

    /// Whether a claim may be deleted with its namespace.
    #[must_use]
    pub const fn let_go(self, claim: &Claim) -> bool {
        match self {
            Self::Hold => false,
            // The class of one whose claim at home is gone may say Retain: nobody deletes its twin.
            Self::Delete => !claim.is_twin || (claim.leaving && claim.retained),
            Self::Retain => claim.is_twin && claim.retained,
        }
    }
}

/// A claim in the remote namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its name, which is that of the claim at home whose twin it is.
    pub name: String,
    /// Whether this driver made it as a twin.
    pub is_twin: bool,
    /// The `PersistentVolume` at home that leads to it, if it is a twin.
    pub volume: Option<String>,
    /// Whether the claim at home is being deleted, gone, or another one by now.
    pub leaving: bool,
    /// Whether its `PersistentVolume` there is bound to it and stays when it goes; looked at only if
    /// that is asked for.
    pub retained: bool,
}

impl Claim {
    /// How it is called where people read it.
    pub(super) fn described(&self, volumes: Volumes) -> String {
        let name = &self.name;
        match volumes {
            _ if !self.is_twin => format!("{name} (not a twin)"),
            Volumes::Retain if !self.retained => {
                format!("{name} (its PersistentVolume there is not retained yet)")
            }
            Volumes::Delete if !self.leaving => format!("{name} (its claim here is not deleted)"),
            Volumes::Hold | Volumes::Delete | Volumes::Retain => name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_asked_for_goes_with_its_namespace() {
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
            assert!(!Volumes::Hold.let_go(&claim), "{claim:?}");
            // Data of a twin never go with the namespace.
            let safe = is_twin && retained;
            assert_eq!(Volumes::Retain.let_go(&claim), safe, "{claim:?}");
            let deleted = !is_twin || (leaving && retained);
            assert_eq!(Volumes::Delete.let_go(&claim), deleted, "{claim:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for volumes in [Volumes::Hold, Volumes::Delete, Volumes::Retain] {
            assert_eq!(Volumes::read(volumes.written().unwrap_or_default()), volumes);
        }
        assert_eq!(Volumes::read("delete everything"), Volumes::Hold);
    }
}
