use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Enough to distinguish kubeconfigs. The hash does not reveal the token, which is too long to guess.
const BYTES: usize = 12;

/// Identifies a kubeconfig: the first bytes of the SHA-256 of its text.
#[must_use]
pub fn fingerprint(text: &[u8]) -> String {
    let digest = Sha256::digest(text);
    let mut shown = String::with_capacity(2 * BYTES);
    for byte in digest.iter().take(BYTES) {
        let _infallible = write!(shown, "{byte:02x}");
    }
    shown
}

#[cfg(test)]
mod tests {
    #[test]
    fn different_texts_have_different_fingerprints() {
        assert_eq!(super::fingerprint(b"a"), super::fingerprint(b"a"));
        assert_ne!(super::fingerprint(b"a"), super::fingerprint(b"b"));
        assert_eq!(super::fingerprint(b"a").len(), 24);
    }
}
