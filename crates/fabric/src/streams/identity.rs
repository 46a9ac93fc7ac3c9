//! Authenticates and authorizes callers, as a kubelet does: by a certificate of the cluster's client CA, which TLS has
//! verified, or by a token, which the API server reviews; and by access reviews for `nodes/proxy` and
//! `nodes/metrics`. There is no anonymous access.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use tokio::{sync::Semaphore, time::Instant};
use x509_parser::{certificate::X509Certificate, prelude::FromDer, x509::X509Name};

use super::Refusal;
use crate::{cluster::Cluster, volume::digest};

/// The group of all authenticated users, which a certificate does not contain.
const AUTHENTICATED: &str = "system:authenticated";
/// The user name of unauthenticated requests.
const ANONYMOUS: &str = "system:anonymous";
/// How long an access review is reused.
const AGE: Duration = Duration::from_secs(5);
/// How long the refusal of a token is reused.
const AGE_OF_REFUSALS: Duration = Duration::from_secs(10);
/// Token reviews at a time, so that other requests of the fabric are not delayed.
const MOST_REVIEWS: usize = 8;
/// Answers that are kept.
const MOST_ANSWERS: usize = 1000;

/// Digits of the digest of a token: enough to exclude collisions.
const DIGITS: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

/// The subresource of a node to authorize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Proxy,
    Metrics,
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::Metrics => "metrics",
        }
    }
}

impl Caller {
    /// The subject of a verified certificate.
    pub(super) fn of_certificate(der: &[u8]) -> Option<Self> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let mut groups = organizations(subject)?;
        groups.push(AUTHENTICATED.to_owned());
        Some(Self {
            name: common_name(subject)?,
            uid: None,
            groups,
            extra: None,
        })
    }
}

/// The common name, if there is exactly one and it is not empty.
fn common_name(subject: &X509Name<'_>) -> Option<String> {
    let mut names = subject.iter_common_name();
    let (name, more) = (names.next()?, names.next());
    let name = name.as_str().ok()?;
    let is_one = more.is_none() && !name.is_empty() && name != ANONYMOUS;
    is_one.then(|| name.to_owned())
}

fn organizations(subject: &X509Name<'_>) -> Option<Vec<String>> {
    subject
        .iter_organization()
        .map(|it| it.as_str().ok().map(str::to_owned))
        .collect()
}

pub(super) struct Authorizer {
    home: Cluster,
    answers: Mutex<HashMap<String, (Instant, bool)>>,
    /// Refused tokens, by their digests.
    refused: Mutex<HashMap<String, Instant>>,
    reviews: Semaphore,
}

impl Authorizer {
    pub(super) fn new(home: Cluster) -> Self {
        Self {
            home,
            answers: Mutex::default(),
            refused: Mutex::default(),
            reviews: Semaphore::new(MOST_REVIEWS),
        }
    }

    /// The caller: the subject of the certificate, or else the user of the token.
    pub(super) async fn identify(
        &self,
        certified: Option<&Caller>,
        headers: &HeaderMap,
    ) -> Result<Caller, Refusal> {
        if let Some(caller) = certified {
            return Ok(caller.clone());
        }
        let token = bearer(headers).ok_or(Refusal::Unauthenticated)?;
        let digest = digest(DIGITS, [token]);
        let is_refused = || {
            self.refused()
                .get(&digest)
                .is_some_and(|when| when.elapsed() < AGE_OF_REFUSALS)
        };
        if is_refused() {
            return Err(Refusal::Unauthenticated);
        }
        let _permit = self.reviews.acquire().await;
        // Another request with this token may have been reviewed meanwhile.
        if is_refused() {
            return Err(Refusal::Unauthenticated);
        }
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let answer = self.home.all::<TokenReview>().create(&review).await?;
        let status = answer.and_then(|answer| answer.status).unwrap_or_default();
        let user = status.user.unwrap_or_default();
        let name = user.username.unwrap_or_default();
        if status.authenticated != Some(true) || name.is_empty() || name == ANONYMOUS {
            let mut refused = self.refused();
            refused.retain(|_, when| when.elapsed() < AGE_OF_REFUSALS);
            if refused.len() < MOST_ANSWERS {
                refused.insert(digest, Instant::now());
            }
            return Err(Refusal::Unauthenticated);
        }
        Ok(Caller {
            name,
            uid: user.uid,
            groups: user.groups.unwrap_or_default(),
            extra: user.extra,
        })
    }

    /// Checks that the caller may do this on a node.
    pub(super) async fn authorize(
        &self,
        caller: &Caller,
        verb: &'static str,
        part: Part,
        node: &str,
    ) -> Result<(), Refusal> {
        let spec = SubjectAccessReviewSpec {
            user: Some(caller.name.clone()),
            uid: caller.uid.clone(),
            groups: Some(caller.groups.clone()),
            extra: caller.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                version: Some("v1".to_owned()),
                resource: Some("nodes".to_owned()),
                subresource: Some(part.name().to_owned()),
                verb: Some(verb.to_owned()),
                name: Some(node.to_owned()),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        };
        let key = serde_json::to_string(&spec).unwrap_or_default();
        let is_allowed = match self.known(&key) {
            Some(known) => known,
            None => self.review(spec, key).await?,
        };
        if is_allowed {
            return Ok(());
        }
        Err(Refusal::Forbidden {
            who: format!("user={}", caller.name),
            verb,
            part: part.name(),
            node: node.to_owned(),
        })
    }

    async fn review(&self, spec: SubjectAccessReviewSpec, key: String) -> Result<bool, Refusal> {
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let answer = self.home.all::<SubjectAccessReview>().create(&review).await?;
        let status = answer.and_then(|answer| answer.status).unwrap_or_default();
        let is_allowed = status.allowed && status.denied != Some(true);
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.retain(|_, (when, _)| when.elapsed() < AGE);
        if answers.len() < MOST_ANSWERS && !key.is_empty() {
            answers.insert(key, (Instant::now(), is_allowed));
        }
        Ok(is_allowed)
    }

    fn refused(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self, key: &str) -> Option<bool> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let (when, is_allowed) = answers.get(key)?;
        (when.elapsed() < AGE).then_some(*is_allowed)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    use super::*;

    fn certificate(names: &[(DnType, &str)]) -> Vec<u8> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in names {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap()
            .der()
            .to_vec()
    }

    #[test]
    fn a_certificate_names_a_user_and_its_groups() {
        let (user, group) = (DnType::CommonName, DnType::OrganizationName);
        let der = certificate(&[(group.clone(), "system:masters"), (user.clone(), "apiserver")]);
        let caller = Caller::of_certificate(&der).unwrap();
        assert_eq!(caller.name, "apiserver");
        assert_eq!(caller.groups, ["system:masters", "system:authenticated"]);
        for invalid in [
            certificate(&[]),
            certificate(&[(group, "system:masters")]),
            certificate(&[(user.clone(), "")]),
            certificate(&[(user, "system:anonymous")]),
            b"no certificate".to_vec(),
        ] {
            assert_eq!(Caller::of_certificate(&invalid), None);
        }
    }

    #[test]
    fn bearer_tokens_are_parsed() {
        for (header, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let headers: HeaderMap = [(AUTHORIZATION, HeaderValue::from_static(header))]
                .into_iter()
                .collect();
            assert_eq!(bearer(&headers), token, "{header:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
