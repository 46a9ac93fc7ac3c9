//! What kubelet tells a driver about the pod that consumes a volume, and which part of it the real driver
//! gets: no more than its own `CSIDriver` object requests.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::volume::{DriverRequirements, TokenRequests};

/// Keys of `podInfoOnMount`.
const POD_INFO: [&str; 5] = [
    "csi.storage.k8s.io/pod.name",
    "csi.storage.k8s.io/pod.namespace",
    "csi.storage.k8s.io/pod.uid",
    "csi.storage.k8s.io/serviceAccount.name",
    "csi.storage.k8s.io/ephemeral",
];
/// Key of `tokenRequests`: one JSON object, audience → token.
const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// What a `NodePublishVolume` call contains in addition to the volume.
#[derive(Clone, Default)]
pub struct Consumer {
    pub context: BTreeMap<String, String>,
    /// The call's secrets: kubelet puts tokens here if the `CSIDriver` of this driver says so.
    pub secrets: BTreeMap<String, String>,
}

/// What the real driver gets in addition to the volume's own context and secrets.
#[derive(Default)]
pub struct PodInfo {
    /// Added to its `volume_context`.
    pub context: BTreeMap<String, String>,
    /// Added to its secrets.
    pub secrets: BTreeMap<String, String>,
    /// Audiences whose tokens it requests and kubelet did not send. Only the driver knows whether it
    /// needs them.
    pub missing_tokens: Vec<String>,
}

/// The service account tokens do not have kubelet's format.
#[derive(Debug, thiserror::Error)]
#[error("the service account tokens kubelet sent cannot be read")]
pub struct MalformedTokens;

impl Consumer {
    /// The part for a driver with these settings in its `CSIDriver`.
    pub fn info_for(&self, wants: &DriverRequirements) -> Result<PodInfo, MalformedTokens> {
        let mut info = PodInfo::default();
        if wants.pod_info {
            let known = POD_INFO.iter().filter_map(|key| self.context.get_key_value(*key));
            info.context
                .extend(known.map(|(key, value)| (key.clone(), value.clone())));
        }
        if let Some(wanted) = &wants.tokens {
            let (tokens, missing) = self.tokens(wanted)?;
            info.missing_tokens = missing;
            let place = if wanted.in_secrets {
                &mut info.secrets
            } else {
                &mut info.context
            };
            if !tokens.is_empty() {
                place.insert(TOKENS.to_owned(), Value::Object(tokens).to_string());
            }
        }
        Ok(info)
    }

    /// The tokens that a driver requests, and the audiences without a token.
    fn tokens(&self, wanted: &TokenRequests) -> Result<(Map<String, Value>, Vec<String>), MalformedTokens> {
        let sent = self.secrets.get(TOKENS).or_else(|| self.context.get(TOKENS));
        let all: Map<String, Value> = match sent {
            Some(text) => serde_json::from_str(text).map_err(|_| MalformedTokens)?,
            None => Map::new(),
        };
        let (mut granted, mut missing) = (Map::new(), Vec::new());
        for audience in &wanted.audiences {
            match all.get(audience) {
                Some(token) => {
                    granted.insert(audience.clone(), token.clone());
                }
                None => missing.push(audience.clone()),
            }
        }
        Ok((granted, missing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consumer() -> Consumer {
        let text = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        Consumer {
            context: text(&[
                (POD_INFO[0], "pod"),
                (POD_INFO[4], "false"),
                ("storage.liqo.io/other", "x"),
                (
                    TOKENS,
                    r#"{"":{"token":"api"},"vault":{"token":"v"},"aws":{"token":"a"}}"#,
                ),
            ]),
            secrets: BTreeMap::new(),
        }
    }

    #[test]
    fn a_driver_without_pod_info_gets_none() {
        let info = consumer().info_for(&DriverRequirements::default()).unwrap();
        assert!(info.context.is_empty() && info.secrets.is_empty());
    }

    #[test]
    fn pod_info_contains_only_the_pod_info_keys() {
        let wants = DriverRequirements {
            pod_info: true,
            ..Default::default()
        };
        let info = consumer().info_for(&wants).unwrap();
        assert_eq!(
            info.context.keys().collect::<Vec<_>>(),
            [POD_INFO[4], POD_INFO[0]]
        );
    }

    #[test]
    fn only_tokens_of_the_requested_audiences_are_passed_on() {
        let wants = |audiences: &[&str], in_secrets| DriverRequirements {
            tokens: Some(TokenRequests {
                audiences: audiences.iter().map(|audience| (*audience).to_owned()).collect(),
                in_secrets,
            }),
            ..Default::default()
        };
        let info = consumer().info_for(&wants(&["vault"], false)).unwrap();
        assert_eq!(info.context[TOKENS], r#"{"vault":{"token":"v"}}"#);
        assert!(info.secrets.is_empty());

        let info = consumer().info_for(&wants(&[""], true)).unwrap();
        assert_eq!(info.secrets[TOKENS], r#"{"":{"token":"api"}}"#);
        assert!(info.context.is_empty());

        let info = consumer().info_for(&wants(&["gcp", "aws"], false)).unwrap();
        assert_eq!(info.context[TOKENS], r#"{"aws":{"token":"a"}}"#);
        assert_eq!(info.missing_tokens, ["gcp"]);
        let info = Consumer::default().info_for(&wants(&["vault"], false)).unwrap();
        assert!(info.context.is_empty() && info.missing_tokens == ["vault"]);
        let mut odd = consumer();
        odd.context.insert(TOKENS.to_owned(), "no JSON".to_owned());
        assert!(odd.info_for(&wants(&["vault"], false)).is_err());
    }
}
