//! The relay between two movers that cannot reach each other: a pod in this driver's namespace with the
//! vetted kubeconfig of each remote cluster, which sees only ciphertext. This file decides whether a relay is
//! needed, and which kubeconfigs it gets. Its program is in [`crate::relay`].

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use secrecy::ExposeSecret;

use super::{
    HelperError, MoveRequest,
    names::{Names, Role},
    pod::{LANES_PORT, RelayPod},
    side::{MoverSide, Routes, routes},
};
use crate::{
    gate::{MovedSide, Place},
    placement::moving::Side,
    volume::digest,
};

const DIGITS: usize = 16;

impl MoverSide<'_> {
    /// The relay, if one is needed.
    pub(super) fn relay<'g>(&'g self, of: &'g MoveRequest) -> Result<Option<RelayPod<'g>>, HelperError> {
        if routes(self.moved, of) == Routes::Direct {
            return Ok(None);
        }
        let kubeconfigs = self.kubeconfigs()?;
        let parts = kubeconfigs
            .iter()
            .flat_map(|(side, text)| [side.as_str(), std::str::from_utf8(&text.0).unwrap_or_default()]);
        Ok(Some(RelayPod {
            moved: self.moved,
            of,
            namespace: self.ours,
            source: self.port(Side::Source),
            target: self.port(Side::Target),
            kubeconfigs: digest(DIGITS, parts),
        }))
    }

    /// The kubeconfigs of the sides that are in remote clusters.
    pub(super) fn kubeconfigs(&self) -> Result<BTreeMap<String, ByteString>, HelperError> {
        let mut kubeconfigs = BTreeMap::new();
        for side in [Side::Source, Side::Target] {
            let end = self.place(side);
            if end.id.cluster == *self.moved.home.id() {
                continue;
            }
            let remote = match &end.place {
                Place::Site(twin) => twin.remote_cluster(),
                Place::Unreachable(_) | Place::Gone => None,
            };
            let kubeconfig = remote.and_then(|remote| remote.kubeconfig());
            let unknown = || HelperError::NoKubeconfig(end.id.cluster.to_string());
            let kubeconfig = kubeconfig.ok_or_else(unknown)?;
            let text = kubeconfig.expose_secret().as_bytes().to_vec();
            kubeconfigs.insert(side.as_str().to_owned(), ByteString(text));
        }
        Ok(kubeconfigs)
    }

    /// The port of the mover of a side, and whether it is in a remote cluster.
    fn port(&self, side: Side) -> (String, bool) {
        let name = Names::of(self.moved).of_role(Role::Mover(side));
        let end = self.place(side);
        let namespace = match &end.place {
            Place::Site(twin) if twin.remote_cluster().is_some() => twin.namespace(),
            Place::Site(_) | Place::Unreachable(_) | Place::Gone => self.ours,
        };
        let is_remote = end.id.cluster != *self.moved.home.id();
        (format!("{namespace}/{name}:{LANES_PORT}"), is_remote)
    }

    fn place(&self, side: Side) -> &MovedSide {
        match side {
            Side::Source => &self.moved.source,
            Side::Target => &self.moved.target,
        }
    }
}
