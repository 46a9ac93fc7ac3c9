//! What kubelet tells a driver about the pod that consumes a volume, and how much
//! of it the real driver is to hear: no more than its own `CSIDriver` object asks for.

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

/// What came with a `NodePublishVolume` beside the volume itself.
#[derive(Clone, Default)]
pub struct Consumer {
    /// The call's `volume_context`.
    pub context: BTreeMap<String, String>,
    /// The call's secrets: kubelet puts tokens here if our `CSIDriver` says so.
    pub secrets: BTreeMap<String, String>,
}

/// What the real driver gets on top of the volume's own context and secrets.
#[derive(Default)]
pub struct PodInfo {
    /// For its `volume_context`.
    pub context: BTreeMap<String, String>,
    /// For its secrets.
    pub secrets: BTreeMap<String, String>,
    /// Audiences whose tokens it asks for and kubelet did not send. Whether it can do
    /// without them only the driver knows.
    pub missing_tokens: Vec<String>,
}

/// The service account tokens are not what kubelet writes.
#[derive(Debug, thiserror::Error)]
#[error("the service account tokens kubelet sent cannot be read")]
pub struct MalformedTokens;

impl Consumer {
    /// The part of it that a driver with these wishes is told.
    pub fn told(&self, wants: &DriverRequirements) -> Result<PodInfo, MalformedTokens> {
        let mut told = PodInfo::default();
        if wants.pod_info {
            let known = POD_INFO.iter().filter_map(|key| self.context.get_key_value(*key));
            told.context
                .extend(known.map(|(key, value)| (key.clone(), value.clone())));
        }
        if let Some(wish) = &wants.tokens {
            let (tokens, missing) = self.tokens(wish)?;
            told.missing_tokens = missing;
            let place = if wish.in_secrets {
                &mut told.secrets
            } else {
                &mut told.context
            };
            if !tokens.is_empty() {
                place.insert(TOKENS.to_owned(), Value::Object(tokens).to_string());
            }
        }
        Ok(told)
    }

    /// The tokens a driver wishes for, and the audiences that have none.
    fn tokens(&self, wish: &TokenRequests) -> Result<(Map<String, Value>, Vec<String>), MalformedTokens> {
        let sent = self.secrets.get(TOKENS).or_else(|| self.context.get(TOKENS));
        let all: Map<String, Value> = match sent {
            Some(text) => serde_json::from_str(text).map_err(|_| MalformedTokens)?,
            None => Map::new(),
        };
        let (mut mine, mut missing) = (Map::new(), Vec::new());
        for audience in &wish.audiences {
            match all.get(audience) {
                Some(token) => {
                    mine.insert(audience.clone(), token.clone());
                }
                None => missing.push(audience.clone()),
            }
        }
        Ok((mine, missing))
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
    fn a_driver_that_asks_for_nothing_hears_nothing() {
        let told = consumer().told(&DriverRequirements::default()).unwrap();
        assert!(told.context.is_empty() && told.secrets.is_empty());
    }

    #[test]
    fn pod_info_is_all_of_it_and_nothing_else() {
        let wants = DriverRequirements {
            pod_info: true,
            ..Default::default()
        };
        let told = consumer().told(&wants).unwrap();
        assert_eq!(
            told.context.keys().collect::<Vec<_>>(),
            [POD_INFO[4], POD_INFO[0]]
        );
    }

    #[test]
    fn tokens_are_cut_down_to_the_audiences_asked_for() {
        let wants = |audiences: &[&str], in_secrets| DriverRequirements {
            tokens: Some(TokenRequests {
                audiences: audiences.iter().map(|audience| (*audience).to_owned()).collect(),
                in_secrets,
            }),
            ..Default::default()
        };
        let told = consumer().told(&wants(&["vault"], false)).unwrap();
        assert_eq!(told.context[TOKENS], r#"{"vault":{"token":"v"}}"#);
        assert!(told.secrets.is_empty());

        let told = consumer().told(&wants(&[""], true)).unwrap();
        assert_eq!(told.secrets[TOKENS], r#"{"":{"token":"api"}}"#);
        assert!(told.context.is_empty());

        let told = consumer().told(&wants(&["gcp", "aws"], false)).unwrap();
        assert_eq!(told.context[TOKENS], r#"{"aws":{"token":"a"}}"#);
        assert_eq!(told.missing_tokens, ["gcp"]);
        let told = Consumer::default().told(&wants(&["vault"], false)).unwrap();
        assert!(told.context.is_empty() && told.missing_tokens == ["vault"]);
        let mut odd = consumer();
        odd.context.insert(TOKENS.to_owned(), "no JSON".to_owned());
        assert!(odd.told(&wants(&["vault"], false)).is_err());
    }
}
