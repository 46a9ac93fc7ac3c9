//! Short, stable names from long texts: a hash in hex.

use sha2::{Digest, Sha256};

/// The first `digits` hex digits of the SHA-256 over the parts.
///
/// Parts are length-prefixed, so that `["ab", "c"]` and `["a", "bc"]` differ.
#[must_use]
pub fn digest<'a>(digits: usize, parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_be_bytes());
        hasher.update(part.as_bytes());
    }
    let mut hex = hasher
        .finalize()
        .iter()
        .fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"));
    hex.truncate(digits);
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_each_part_and_its_boundaries() {
        assert_eq!(digest(10, ["a", "b"]), digest(10, ["a", "b"]));
        assert_ne!(digest(10, ["ab", "c"]), digest(10, ["a", "bc"]));
        assert_ne!(digest(10, ["a", "b"]), digest(10, ["b", "a"]));
        assert_eq!(digest(10, ["a"]).len(), 10);
    }
}
