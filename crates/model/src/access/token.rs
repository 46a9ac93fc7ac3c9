//! The payload of a service account token. It is read to know when the token expires and whether it can be
//! renewed, never to decide what it allows: that is up to the API server.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::Value;

/// The payload of a token, unverified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenFacts {
    /// Namespace of its service account.
    pub namespace: String,
    /// Name of its service account.
    pub account: String,
    /// When it was issued, in seconds since 1970.
    pub issued: i64,
    /// When it expires, if ever.
    pub expires: Option<i64>,
    /// The Secret that it is bound to, if any.
    pub bound_to: Option<String>,
}

impl TokenFacts {
    /// `None` if it is not a token of a service account.
    #[must_use]
    pub fn read(token: &str) -> Option<Self> {
        let payload = token.trim().split('.').nth(1)?;
        let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
        let said: Value = serde_json::from_slice(&payload).ok()?;
        let subject = said["sub"].as_str()?.strip_prefix("system:serviceaccount:")?;
        let (namespace, account) = subject.split_once(':')?;
        let bound_to = said["kubernetes.io"]["secret"]["name"].as_str();
        Some(Self {
            namespace: namespace.to_owned(),
            account: account.to_owned(),
            issued: said["iat"].as_i64().unwrap_or_default(),
            expires: said["exp"].as_i64(),
            bound_to: bound_to.map(str::to_owned),
        })
    }

    /// Whether the driver renews it: only a token that expires and is bound to the session Secret.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        self.expires.is_some() && self.bound_to.as_deref() == Some(super::SESSION)
    }

    /// Lifetime in seconds.
    #[must_use]
    pub fn lifetime(&self) -> Option<i64> {
        Some(self.expires?.saturating_sub(self.issued).max(0))
    }

    /// When to renew it: after a third of its lifetime. Two thirds remain for clusters that are unreachable.
    #[must_use]
    pub fn due(&self) -> Option<i64> {
        let lifetime = self.lifetime().filter(|_| self.is_renewed())?;
        Some(self.issued.saturating_add(lifetime / 3))
    }

    #[must_use]
    pub fn is_due(&self, now: i64) -> bool {
        self.due().is_some_and(|due| now >= due)
    }
}

#[cfg(any(test, feature = "testkit"))]
#[must_use]
pub fn token_saying(payload: &Value) -> String {
    format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(payload.to_string()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{token_saying as token, *};

    fn session() -> Value {
        json!({
            "iat": 1000, "exp": 4000, "sub": "system:serviceaccount:access:liqo-csi-remote",
            "kubernetes.io": {"secret": {"name": "liqo-csi-session", "uid": "1"}},
        })
    }

    #[test]
    fn account_and_expiry_are_read_from_a_token() {
        let facts = TokenFacts::read(&token(&session())).unwrap();
        assert_eq!(
            (facts.namespace.as_str(), facts.account.as_str()),
            ("access", "liqo-csi-remote")
        );
        assert_eq!((facts.issued, facts.expires), (1000, Some(4000)));
        assert!(facts.is_renewed());
        for other in ["", "abc", "a.b.c", &token(&json!({"sub": "jane"}))] {
            assert_eq!(TokenFacts::read(other), None, "{other}");
        }
    }

    #[test]
    fn a_renewal_is_due_after_a_third_of_the_lifetime() {
        let facts = TokenFacts::read(&token(&session())).unwrap();
        assert!(!facts.is_due(1999));
        assert!(facts.is_due(2000));
        assert!(
            facts.is_due(5000),
            "one that has ended may be renewed by a clock that is wrong"
        );
    }

    #[test]
    fn extreme_dates_do_not_make_parsing_panic() {
        let mut endless = session();
        (endless["iat"], endless["exp"]) = (i64::MIN.into(), i64::MAX.into());
        let facts = TokenFacts::read(&token(&endless)).unwrap();
        assert_eq!(facts.lifetime(), Some(i64::MAX));
    }

    #[test]
    fn tokens_without_expiry_or_of_another_secret_are_not_renewed() {
        let mut everlasting = session();
        everlasting.as_object_mut().unwrap().remove("exp");
        let mut elsewhere = session();
        elsewhere["kubernetes.io"]["secret"]["name"] = "other".into();
        for payload in [everlasting, elsewhere] {
            let facts = TokenFacts::read(&token(&payload)).unwrap();
            assert!(!facts.is_due(i64::MAX / 2), "{payload}");
        }
    }
}
