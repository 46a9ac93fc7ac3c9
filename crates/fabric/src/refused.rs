//! The event about a write that a policy or webhook refuses.

use std::fmt::Display;

pub(super) const WRITE_REFUSED: &str = "WriteRefused";

/// The text of that event; `what` is the object of the sentence "the fabric cannot write …".
pub(super) fn note(what: &str, why: impl Display) -> String {
    format!(
        "the fabric cannot write {what}, and tries again. If a webhook or policy refuses the write or changes more with it, leave \
         out the account of this driver there: {why}"
    )
}
