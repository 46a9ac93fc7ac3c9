//! The serving certificate. It is requested from the cluster for the address of this pod, as a kubelet requests its own,
//! and has to be approved. Until then a self-signed one is served, which an API server without
//! `--kubelet-certificate-authority` accepts. Keys are in memory only, and new for each certificate.

use std::{
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
};
use kube::{ResourceExt, api::ObjectMeta};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    sign::CertifiedKey,
};
use tokio::{
    sync::watch,
    time::{self, Instant},
};
use uuid::Uuid;
use x509_parser::{certificate::X509Certificate, prelude::FromDer};

use crate::{
    cluster::{ApiError, Cluster, short},
    observe::crash::{self, Step},
    volume::mark,
};

pub const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// The organization that the signer demands.
const NODES: &str = "system:nodes";
/// The first pause between two reads of a pending request; it doubles each time.
const FIRST_POLL: Duration = Duration::from_millis(200);
const LONGEST_POLL: Duration = Duration::from_secs(10);
/// A warning is logged after this time: an automatic approver takes less.
const WARN_AFTER: Duration = Duration::from_secs(30);
/// The pause after a failed request.
const RETRY: Duration = Duration::from_mins(5);
/// The shortest time until a renewal.
const LEAST: Duration = Duration::from_mins(1);

/// The subject and address of a certificate.
#[derive(Clone, Debug)]
pub(super) struct CertificateSpec {
    /// The name after `system:node:`.
    pub(super) node: String,
    /// The address at which API servers call this process; without one, no certificate is requested.
    pub(super) address: Option<IpAddr>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("cannot create a key or request: {0}")]
    Request(#[from] rcgen::Error),
    #[error("the certificate cannot be used: {0}")]
    Tls(#[from] rustls::Error),
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
    #[error("the request {0} was {1}")]
    Refused(String, String),
    #[error("the request {0} is gone")]
    Gone(String),
}

/// The certificate that is served.
pub(super) type Current = watch::Sender<Arc<CertifiedKey>>;

pub(super) fn self_signed(
    spec: &CertificateSpec,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = params(spec)?.self_signed(&key)?;
    certified(vec![certificate.der().clone()], &key, provider)
}

/// Requests certificates and renews them. Never returns if the address is known.
pub(super) async fn keep(
    home: &Cluster,
    spec: &CertificateSpec,
    current: &Current,
    provider: &CryptoProvider,
) {
    if spec.address.is_none() {
        tracing::warn!("this pod's address is unknown (POD_IP): no serving certificate is requested");
        return;
    }
    loop {
        let pause = match obtain(home, spec, provider).await {
            Ok((certificate, due)) => {
                tracing::info!(
                    seconds = due.as_secs(),
                    "obtained a serving certificate; renewing it after this time"
                );
                current.send_replace(Arc::new(certificate));
                due
            }
            Err(error) => {
                tracing::warn!(%error, "failed to obtain a serving certificate");
                RETRY
            }
        };
        time::sleep(pause).await;
    }
}

/// A certificate, and the time until it has to be renewed.
pub(super) async fn obtain(
    home: &Cluster,
    spec: &CertificateSpec,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, Duration), CertificateError> {
    let key = KeyPair::generate()?;
    let request = request(spec, &key)?;
    let (name, all) = (request.name_any(), home.all::<CertificateSigningRequest>());
    crash::around(Step::ServingRequest, all.create(&request)).await?;
    let signed = signed(home, &name).await?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&signed).collect();
    let chain = chain.map_err(|error| CertificateError::Unreadable(error.to_string()))?;
    let due = due(&chain, SystemTime::now())?;
    Ok((certified(chain, &key, provider)?, due))
}

/// Waits until the request is approved or denied, without a limit.
async fn signed(home: &Cluster, name: &str) -> Result<Vec<u8>, CertificateError> {
    let (began, mut is_warned) = (Instant::now(), false);
    let mut pause = FIRST_POLL;
    loop {
        time::sleep(pause).await;
        if !is_warned && began.elapsed() > WARN_AFTER {
            is_warned = true;
            tracing::warn!(
                "the request for a serving certificate is not approved: kubectl certificate approve {name}; until then a \
                 self-signed one is served, which no API server with --kubelet-certificate-authority accepts"
            );
        }
        pause = (pause * 2).min(LONGEST_POLL);
        let found = home.all::<CertificateSigningRequest>().get(name).await;
        let status = match found {
            Ok(Some(found)) => found.status.unwrap_or_default(),
            // Kubernetes deletes pending requests after a day.
            Ok(None) => return Err(CertificateError::Gone(name.to_owned())),
            Err(error) if error.is_transient() => continue,
            Err(error) => return Err(error.into()),
        };
        let refused = status.conditions.iter().flatten();
        let mut refused = refused.filter(|it| it.type_ == "Denied" || it.type_ == "Failed");
        if let Some(condition) = refused.next() {
            let why = condition.message.as_deref().unwrap_or_default();
            let why = format!("{}: {}", condition.type_.to_lowercase(), short(why));
            return Err(CertificateError::Refused(name.to_owned(), why));
        }
        if let Some(ByteString(text)) = status.certificate
            && !text.is_empty()
        {
            return Ok(text);
        }
    }
}

fn request(spec: &CertificateSpec, key: &KeyPair) -> Result<CertificateSigningRequest, CertificateError> {
    let text = params(spec)?.serialize_request(key)?.pem()?;
    let unique = Uuid::new_v4().simple().to_string();
    let usages = ["digital signature", "server auth"];
    Ok(CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(format!("liqo-csi-fabric-{}", &unique[..10])),
            labels: Some([(mark::MANAGED_BY.to_owned(), mark::MANAGED_BY_US.to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(text.into_bytes()),
            signer_name: SIGNER.to_owned(),
            // No key encipherment: the key is an elliptic-curve key.
            usages: Some(usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

fn params(spec: &CertificateSpec) -> Result<CertificateParams, rcgen::Error> {
    let address = spec
        .address
        .map_or_else(|| "localhost".to_owned(), |it| it.to_string());
    let mut params = CertificateParams::new(vec![address])?;
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, NODES);
    subject.push(DnType::CommonName, format!("system:node:{}", spec.node));
    Ok(params)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: &KeyPair,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificateError> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    // Fails for a certificate of another key.
    Ok(CertifiedKey::from_der(chain, key, provider)?)
}

/// The time until a certificate is renewed: after four fifths of its validity.
fn due(chain: &[CertificateDer<'_>], now: SystemTime) -> Result<Duration, CertificateError> {
    let unreadable = |why: &str| CertificateError::Unreadable(why.to_owned());
    let first = chain.first().ok_or_else(|| unreadable("it is empty"))?;
    let parsed = X509Certificate::from_der(first);
    let (_, certificate) = parsed.map_err(|error| unreadable(&error.to_string()))?;
    let validity = certificate.validity();
    let (from, to) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    let at = from.saturating_add(to.saturating_sub(from) / 5 * 4);
    let at = UNIX_EPOCH + Duration::from_secs(u64::try_from(at).unwrap_or_default());
    Ok(at.duration_since(now).unwrap_or_default().max(LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_after_four_fifths_of_its_validity() {
        let now = SystemTime::now();
        let mut params = CertificateParams::new(vec!["10.0.0.1".to_owned()]).unwrap();
        params.not_before = now.into();
        params.not_after = (now + Duration::from_secs(1000)).into();
        let key = KeyPair::generate().unwrap();
        let chain = [params.self_signed(&key).unwrap().der().clone()];
        let due_in = |since| due(&chain, now + Duration::from_secs(since)).unwrap().as_secs();
        assert!((798..=800).contains(&due_in(0)), "{}", due_in(0));
        assert!((98..=100).contains(&due_in(700)), "{}", due_in(700));
        assert_eq!(due_in(5000), LEAST.as_secs());
        assert!(due(&[], now).is_err());
    }
}
