use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Enough to tell kubeconfigs apart. A hash reveals nothing of a token, which nobody can guess.
const BYTES: usize = 12;

/// Which kubeconfig it is: the beginning of the SHA-256 of its text.
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
    fn another_text_is_another_fingerprint() {
        assert_eq!(super::fingerprint(b"a"), super::fingerprint(b"a"));
        assert_ne!(super::fingerprint(b"a"), super::fingerprint(b"b"));
        assert_eq!(super::fingerprint(b"a").len(), 24);
    }
}
