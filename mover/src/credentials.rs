//! The identities of the two sides: a certificate authority for one move, and two certificates of it. A side
//! proves its role and the move by the name in its certificate.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::verify_server_name,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    server::{ParsedCertificate, WebPkiClientVerifier},
    version::TLS13,
};

use crate::error::Error;

/// The side of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that reads.
    Source,
    /// The side that writes.
    Target,
}

/// A move, with the epoch of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MoveId {
    uid: String,
    epoch: u64,
}

/// The credentials of one side, in PEM.
#[derive(Clone)]
pub struct Identity {
    /// The authority of this move.
    pub authority: String,
    /// This side's certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
}

/// How long certificates are valid; new ones have to be issued for longer moves.
pub const LIFETIME: Duration = Duration::from_hours(24);
/// Clocks of two clusters differ.
const SKEW: Duration = Duration::from_mins(10);

impl MoveId {
    /// `uid` becomes part of a DNS name and of a directory name.
    pub fn new(uid: &str, epoch: u64) -> Result<Self, Error> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if uid.is_empty()
            || uid.len() > 63
            || !uid.bytes().all(plain)
            || uid.starts_with('-')
            || uid.ends_with('-')
        {
            return Err(Error::Credentials(format!("{uid:?} is not the uid of a move")));
        }
        Ok(Self {
            uid: uid.to_owned(),
            epoch,
        })
    }

    /// The uid.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The epoch of the volume once it has moved.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    fn name_of(&self, role: Role) -> String {
        let role = match role {
            Role::Source => "source",
            Role::Target => "target",
        };
        format!("{role}.{}.move.storage.liqo.io", self.uid)
    }

    fn server_name(&self, role: Role) -> Result<ServerName<'static>, Error> {
        ServerName::try_from(self.name_of(role)).map_err(unusable)
    }

    /// Whether this certificate, which the authority has signed, belongs to that side.
    pub(crate) fn check(&self, role: Role, peer: Option<&[CertificateDer<'_>]>) -> Result<(), Error> {
        let certificate = peer
            .and_then(<[_]>::first)
            .ok_or_else(|| Error::Refused("it showed no certificate".to_owned()))?;
        let parsed = ParsedCertificate::try_from(certificate).map_err(unusable)?;
        verify_server_name(&parsed, &self.server_name(role)?)
            .map_err(|_| Error::Refused(format!("its certificate is not that of {}", self.name_of(role))))
    }
}

/// New credentials for both sides of a move: source, then target.
pub fn issue(id: &MoveId) -> Result<(Identity, Identity), Error> {
    let now = SystemTime::now();
    let authority = {
        let mut params = params(Vec::new(), now)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
        CertifiedIssuer::self_signed(params, KeyPair::generate().map_err(unusable)?).map_err(unusable)?
    };
    let leaf = |role, usage| -> Result<Identity, Error> {
        let mut params = params(vec![id.name_of(role)], now)?;
        params.extended_key_usages = vec![usage];
        let key = KeyPair::generate().map_err(unusable)?;
        let certificate = params.signed_by(&key, &authority).map_err(unusable)?;
        Ok(Identity {
            authority: authority.pem(),
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    };
    Ok((
        leaf(Role::Source, ExtendedKeyUsagePurpose::ClientAuth)?,
        leaf(Role::Target, ExtendedKeyUsagePurpose::ServerAuth)?,
    ))
}

fn params(names: Vec<String>, now: SystemTime) -> Result<CertificateParams, Error> {
    let mut params = CertificateParams::new(names).map_err(unusable)?;
    params.not_before = (now - SKEW).into();
    params.not_after = (now + LIFETIME).into();
    Ok(params)
}

impl Identity {
    fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.authority.as_bytes()) {
            roots.add(certificate.map_err(unusable)?).map_err(unusable)?;
        }
        Ok(roots)
    }

    fn chain(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let chain: Result<_, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(unusable)?;
        Ok((chain.map_err(unusable)?, key))
    }

    /// For the source, which is the TLS client even if it was dialled.
    pub(crate) fn client(&self) -> Result<Arc<ClientConfig>, Error> {
        let (chain, key) = self.chain()?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        Ok(Arc::new(config))
    }

    /// For the target.
    pub(crate) fn server(&self) -> Result<Arc<ServerConfig>, Error> {
        let (chain, key) = self.chain()?;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider())
            .build()
            .map_err(unusable)?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        // A lane is read in one direction only, so tickets would never be read.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }
}

/// The server name of the target in the certificates.
pub(crate) fn target_name(id: &MoveId) -> Result<ServerName<'static>, Error> {
    id.server_name(Role::Target)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn unusable(error: impl fmt::Display) -> Error {
    Error::Credentials(error.to_string())
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}
