//! The certificate that callers are shown. It is asked of the cluster, for the address of this pod
//! and as a kubelet asks for its own; somebody has to approve that. Until then one is shown that
//! only says what it says itself: an API server without `--kubelet-certificate-authority` takes it.
//! Keys are in memory only, and new for each certificate.

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

/// Who signs it.
pub const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// The group of those whom the signer signs for.
const NODES: &str = "system:nodes";
/// Between the first two looks at a request that is not decided, and twice as long each time.
const FIRST_POLL: Duration = Duration::from_millis(200);
/// That long at most.
const LONGEST_POLL: Duration = Duration::from_secs(10);
/// Whoever approves it by itself has done so by then.
const PATIENCE: Duration = Duration::from_secs(30);
/// After a request that came to nothing.
const RETRY: Duration = Duration::from_mins(5);
/// Before a certificate is due that ends before this.
const LEAST: Duration = Duration::from_mins(1);

/// What a certificate is to say.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// The name behind `system:node:`.
    pub(super) node: String,
    /// The address by which we are called; without one, no certificate is asked for.
    pub(super) address: Option<IpAddr>,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("no key or request can be made: {0}")]
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

/// What is shown now.
pub(super) type Shown = watch::Sender<Arc<CertifiedKey>>;

/// A certificate that we signed ourselves.
pub(super) fn self_signed(
    wanted: &Wanted,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificateError> {
    let key = KeyPair::generate()?;
    let certificate = params(wanted)?.self_signed(&key)?;
    certified(vec![certificate.der().clone()], &key, provider)
}

/// Has certificates signed and renewed, for ever.
pub(super) async fn keep(home: &Cluster, wanted: &Wanted, shown: &Shown, provider: &CryptoProvider) {
    if wanted.address.is_none() {
        tracing::warn!("this pod's address is not known (POD_IP): no serving certificate is asked for");
        return;
    }
    loop {
        let rest = match obtain(home, wanted, provider).await {
            Ok((certificate, due)) => {
                tracing::info!(
                    seconds = due.as_secs(),
                    "has a serving certificate until it is due"
                );
                shown.send_replace(Arc::new(certificate));
                due
            }
            Err(error) => {
                tracing::warn!(%error, "there is no serving certificate");
                RETRY
            }
        };
        time::sleep(rest).await;
    }
}

/// A certificate, and when the next one is due.
pub(super) async fn obtain(
    home: &Cluster,
    wanted: &Wanted,
    provider: &CryptoProvider,
) -> Result<(CertifiedKey, Duration), CertificateError> {
    let key = KeyPair::generate()?;
    let request = request(wanted, &key)?;
    let (name, all) = (request.name_any(), home.all::<CertificateSigningRequest>());
    crash::around(Step::ServingRequest, all.create(&request)).await?;
    let signed = signed(home, &name).await?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&signed).collect();
    let chain = chain.map_err(|error| CertificateError::Unreadable(error.to_string()))?;
    let due = due(&chain, SystemTime::now())?;
    Ok((certified(chain, &key, provider)?, due))
}

/// Waits until somebody has decided, for as long as it takes.
async fn signed(home: &Cluster, name: &str) -> Result<Vec<u8>, CertificateError> {
    let (began, mut is_told) = (Instant::now(), false);
    let mut pause = FIRST_POLL;
    loop {
        time::sleep(pause).await;
        if !is_told && began.elapsed() > PATIENCE {
            is_told = true;
            tracing::warn!(
                "nobody approves the serving certificate: kubectl certificate approve {name}; until then one is shown \
                 that no API server with --kubelet-certificate-authority takes"
            );
        }
        pause = (pause * 2).min(LONGEST_POLL);
        let found = home.all::<CertificateSigningRequest>().get(name).await;
        let status = match found {
            Ok(Some(found)) => found.status.unwrap_or_default(),
            // It is deleted when nobody decides for a day.
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

fn request(wanted: &Wanted, key: &KeyPair) -> Result<CertificateSigningRequest, CertificateError> {
    let text = params(wanted)?.serialize_request(key)?.pem()?;
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
            // The key is one of an elliptic curve: it enciphers no other.
            usages: Some(usages.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    })
}

fn params(wanted: &Wanted) -> Result<CertificateParams, rcgen::Error> {
    let address = wanted
        .address
        .map_or_else(|| "localhost".to_owned(), |it| it.to_string());
    let mut params = CertificateParams::new(vec![address])?;
    params.distinguished_name = DistinguishedName::new();
    let subject = &mut params.distinguished_name;
    subject.push(DnType::OrganizationName, NODES);
    subject.push(DnType::CommonName, format!("system:node:{}", wanted.node));
    Ok(params)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: &KeyPair,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificateError> {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    // Refuses a certificate of another key.
    Ok(CertifiedKey::from_der(chain, key, provider)?)
}

/// How long until a certificate is renewed: when four fifths of its time are over.
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
    fn a_certificate_is_renewed_when_four_fifths_of_its_time_are_over() {
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
