//! Who calls, and whether they may. A caller shows a certificate of the cluster's client CA, which
//! TLS has verified before it is read here, or a token, which the API server reviews. What they may
//! do is asked of the API server as a kubelet asks it: the rights on `nodes/proxy` and
//! `nodes/metrics`. Nobody is anonymous.

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

/// The group of whoever the API server knows. A certificate does not say it.
const AUTHENTICATED: &str = "system:authenticated";
/// What authentication calls those whom it does not know.
const ANONYMOUS: &str = "system:anonymous";
/// For how long an answer of the API server counts.
const AGE: Duration = Duration::from_secs(5);
/// For how long a token counts as none that was none.
const AGE_OF_REFUSALS: Duration = Duration::from_secs(10);
/// So many tokens are reviewed at a time: what the fabric itself asks of the API server waits behind them.
const MOST_REVIEWS: usize = 8;
/// So many answers are kept.
const MOST_ANSWERS: usize = 1000;

/// Digits of the digest of a token: as many as make it the only one.
const DIGITS: usize = 64;

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Caller {
    name: String,
    uid: Option<String>,
    groups: Vec<String>,
    extra: Option<BTreeMap<String, Vec<String>>>,
}

/// The part of a node that something takes a right on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Its pods.
    Proxy,
    /// What is used there.
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
    /// Whose certificate this is. It was verified before.
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

/// One that is the only one and not empty.
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

/// Asks the API server about callers.
pub(super) struct Gate {
    home: Cluster,
    answers: Mutex<HashMap<String, (Instant, bool)>>,
    /// Tokens that were none, by their digests.
    refused: Mutex<HashMap<String, Instant>>,
    reviews: Semaphore,
}

impl Gate {
    pub(super) fn new(home: Cluster) -> Self {
        Self {
            home,
            answers: Mutex::default(),
            refused: Mutex::default(),
            reviews: Semaphore::new(MOST_REVIEWS),
        }
    }

    /// Who calls: whom their certificate names, or else whose token they show.
    pub(super) async fn identify(
        &self,
        certified: Option<&Caller>,
        headers: &HeaderMap,
    ) -> Result<Caller, Refusal> {
        if let Some(caller) = certified {
            return Ok(caller.clone());
        }
        let token = bearer(headers).ok_or(Refusal::Stranger)?;
        let digest = digest(DIGITS, [token]);
        let is_refused = || {
            self.refused()
                .get(&digest)
                .is_some_and(|when| when.elapsed() < AGE_OF_REFUSALS)
        };
        if is_refused() {
            return Err(Refusal::Stranger);
        }
        let _turn = self.reviews.acquire().await;
        // It may have been asked about meanwhile.
        if is_refused() {
            return Err(Refusal::Stranger);
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
            return Err(Refusal::Stranger);
        }
        Ok(Caller {
            name,
            uid: user.uid,
            groups: user.groups.unwrap_or_default(),
            extra: user.extra,
        })
    }

    /// Whether the caller may do this on a node.
    pub(super) async fn admit(
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
            None => self.ask(spec, key).await?,
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

    async fn ask(&self, spec: SubjectAccessReviewSpec, key: String) -> Result<bool, Refusal> {
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

/// The token that a caller shows.
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
        for nobody in [
            certificate(&[]),
            certificate(&[(group, "system:masters")]),
            certificate(&[(user.clone(), "")]),
            certificate(&[(user, "system:anonymous")]),
            b"no certificate".to_vec(),
        ] {
            assert_eq!(Caller::of_certificate(&nobody), None);
        }
    }

    #[test]
    fn a_token_is_read_as_it_is_shown() {
        for (shown, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer ", None),
            ("Bearer", None),
            ("Basic abc", None),
            ("", None),
        ] {
            let headers: HeaderMap = [(AUTHORIZATION, HeaderValue::from_static(shown))]
                .into_iter()
                .collect();
            assert_eq!(bearer(&headers), token, "{shown:?}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
