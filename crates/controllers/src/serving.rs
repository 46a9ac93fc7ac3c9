//! Approves the serving certificates of the fabric, if that is enabled. RBAC has only one right for the
//! serving certificates of all kubelets. The fabric, which parses responses of remote clusters, does not
//! have it: with the token of a pod of the fabric one gets a certificate for that pod, and for no node.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::{
    ByteString,
    api::{certificates::v1::CertificateSigningRequest, core::v1::Pod},
};
use kube::ResourceExt;
use serde_json::json;
use tokio::sync::watch;
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension},
    pem::parse_x509_pem,
    prelude::FromDer,
    x509::{AttributeTypeAndValue, X509Name},
};

use crate::{
    cluster::{ApiError, Cluster, Objects},
    observe::{
        crash::{self, Step},
        log::Ongoing,
    },
    rounds::Rounds,
    volume::mark,
};

const SIGNER: &str = "kubernetes.io/kubelet-serving";
/// The pod to which a token is bound, as verified by the API server.
const POD_OF_TOKEN: &str = "authentication.kubernetes.io/pod-name";
const ACCOUNT: &str = "liqo-csi-fabric";
/// Selects the pods of the fabric.
const LABELS: &str = "app.kubernetes.io/component=fabric";

pub(super) struct ServingCertificates {
    requests: Objects<CertificateSigningRequest>,
    pods: Objects<Pod>,
    /// The user name of the fabric's account.
    user: String,
    refusals: Ongoing,
}

impl ServingCertificates {
    pub(super) fn new(home: &Cluster, namespace: &str) -> Self {
        Self {
            requests: home.all(),
            pods: home.within(namespace),
            user: format!("system:serviceaccount:{namespace}:{ACCOUNT}"),
            refusals: Ongoing::default(),
        }
    }

    /// The requests of the fabric that are neither approved nor denied.
    async fn undecided(&self) -> Result<Vec<CertificateSigningRequest>, ApiError> {
        let ours = format!("{}={}", mark::MANAGED_BY, mark::MANAGED_BY_US);
        let mut all = self.requests.list(Some(&ours)).await?;
        all.retain(|it| {
            let conditions = it.status.iter().flat_map(|status| &status.conditions);
            it.spec.signer_name == SIGNER
                && it.spec.username.as_deref() == Some(&self.user)
                && conditions.flatten().next().is_none()
        });
        Ok(all)
    }

    async fn approve(&self, request: &CertificateSigningRequest, approver: &str) -> Result<(), ApiError> {
        let approval = json!({
            // Approves exactly the version that was checked, not a replacement.
            "metadata": {"uid": request.metadata.uid, "resourceVersion": request.metadata.resource_version},
            "status": {"conditions": [{
                "type": "Approved",
                "status": "True",
                "reason": "FabricServing",
                "message": format!("a pod of the fabric requests its own name and address ({approver})"),
            }]},
        });
        let name = request.name_any();
        let written = self.requests.merge_approval(&name, &approval);
        crash::around(Step::ServingApprove, written).await.map(drop)
    }

    /// Approves the requests that pass the check.
    async fn decide(&self, approver: &str) -> Result<Decided, ApiError> {
        let requests = self.undecided().await?;
        let pods = if requests.is_empty() {
            Vec::new()
        } else {
            self.pods.list(Some(LABELS)).await?
        };
        let mut decided = Decided::default();
        for request in requests {
            let name = request.name_any();
            let outcome = match check(&request, &pods) {
                Ok(()) => self
                    .approve(&request, approver)
                    .await
                    .map_err(|error| error.to_string()),
                Err(why) => Err(why),
            };
            match outcome {
                Ok(()) => decided.approved.push(name),
                Err(why) => decided.refused.push(format!("{name}: {why}")),
            }
        }
        Ok(decided)
    }
}

/// The outcome for the pending requests.
#[derive(Debug, Default)]
pub struct Decided {
    pub approved: Vec<String>,
    /// Their names, and why they were not approved.
    pub refused: Vec<String>,
}

/// Approves the pending requests of the fabric in this namespace, with the rights of the caller.
pub async fn approve_serving(home: &Cluster, namespace: &str) -> Result<Decided, ApiError> {
    ServingCertificates::new(home, namespace)
        .decide("liqo-csi connect")
        .await
}

impl Rounds for ServingCertificates {
    const NAME: &'static str = "serving-certificates";
    // Requests are few and rare: not worth a watch of those of all kubelets.
    const RESYNC: Duration = Duration::from_secs(10);

    fn triggers(&self) -> Vec<watch::Receiver<u64>> {
        Vec::new()
    }

    async fn round(&mut self) -> Result<(), ApiError> {
        let Decided { refused, .. } = self.decide("fabric.streams.approveCertificates").await?;
        if refused.is_empty() {
            self.refusals.is_over();
        } else if self.refusals.is_news(refused.join("; ")) {
            let requests = refused.join("; ");
            tracing::warn!(requests, "serving certificates of the fabric are not approved");
        }
        Ok(())
    }
}

/// Whether a request is for the name and the address of a pod of the fabric, and nothing else.
fn check(request: &CertificateSigningRequest, pods: &[Pod]) -> Result<(), String> {
    let mut usages = request.spec.usages.clone().unwrap_or_default();
    usages.sort();
    if usages != ["digital signature", "server auth"] {
        return Err(format!("it is for {}", usages.join(", ")));
    }
    let ByteString(text) = &request.spec.request;
    let unreadable = |error: &dyn std::fmt::Display| format!("it cannot be read: {error}");
    if !is_one_block(text) {
        return Err("it is not one PEM block, CERTIFICATE REQUEST, and nothing else".to_owned());
    }
    let (_, pem) = parse_x509_pem(text).map_err(|error| unreadable(&error))?;
    let (rest, parsed) =
        X509CertificationRequest::from_der(&pem.contents).map_err(|error| unreadable(&error))?;
    if !rest.is_empty() {
        return Err("it has trailing data".to_owned());
    }
    let info = &parsed.certification_request_info;
    if values(info.subject.iter_organization()) != ["system:nodes"] {
        return Err(format!("its organization is not system:nodes: {}", info.subject));
    }
    let name = node(&info.subject)?;
    let token_of = request
        .spec
        .extra
        .as_ref()
        .and_then(|extra| extra.get(POD_OF_TOKEN));
    if token_of.is_none_or(|pods| *pods != [name.as_str()]) {
        return Err(format!("it was not requested with the token of the pod {name}"));
    }
    let pod = pods
        .iter()
        .find(|it| it.name_any() == name && is_of_the_fabric(it));
    let pod = pod.ok_or_else(|| format!("the fabric has no pod {name}"))?;
    let address = pod.status.as_ref().and_then(|it| it.pod_ip.as_deref());
    let address = address.and_then(|it| it.parse::<IpAddr>().ok());
    let address = address.ok_or_else(|| format!("the pod {name} has no address"))?;
    let extensions = info.iter_attributes().flat_map(|it| match it.parsed_attribute() {
        ParsedCriAttribute::ExtensionRequest(asked) => asked.extensions.iter().collect(),
        _ => Vec::new(),
    });
    let mut asked = Vec::new();
    for extension in extensions {
        if let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() {
            asked.extend(&names.general_names);
        }
    }
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    match asked.as_slice() {
        [GeneralName::IPAddress(one)] if *one == octets => Ok(()),
        _ => Err(format!(
            "it is for other names than {address}, the address of the pod {name}"
        )),
    }
}

/// Whether every parser reads the same request from this text. Go, which Kubernetes signs with,
/// skips a block whose end does not match its beginning and takes the next one.
fn is_one_block(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let inner = text
        .trim()
        .strip_prefix("-----BEGIN CERTIFICATE REQUEST-----\n")
        .and_then(|text| text.strip_suffix("\n-----END CERTIFICATE REQUEST-----"));
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(&byte);
    inner.is_some_and(|inner| inner.bytes().all(is_base64))
}

fn is_of_the_fabric(pod: &Pod) -> bool {
    let account = pod
        .spec
        .as_ref()
        .and_then(|it| it.service_account_name.as_deref());
    account == Some(ACCOUNT) && pod.metadata.deletion_timestamp.is_none()
}

/// The single name after `system:node:`.
fn node(subject: &X509Name<'_>) -> Result<String, String> {
    let names = values(subject.iter_common_name());
    let name = match names.as_slice() {
        [one] => one.strip_prefix("system:node:"),
        _ => None,
    };
    let name = name.ok_or_else(|| format!("its name is not one of a node: {subject}"))?;
    Ok(name.to_owned())
}

fn values<'a>(attributes: impl Iterator<Item = &'a AttributeTypeAndValue<'a>>) -> Vec<String> {
    attributes
        .map(|it| it.as_str().unwrap_or_default().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};
    use serde_json::Value;

    use super::*;
    use crate::cluster::testing::FakeApi;

    const REQUEST: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests/liqo-csi-fabric-1";
    const USER: &str = "system:serviceaccount:ours:liqo-csi-fabric";
    const POD: &str = "/api/v1/namespaces/ours/pods/fabric-0";

    /// A request of the fabric's pod `fabric-0`, with this change.
    fn request(change: impl FnOnce(&mut CertificateParams)) -> Value {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:nodes");
        params
            .distinguished_name
            .push(DnType::CommonName, "system:node:fabric-0");
        params.subject_alt_names = vec![SanType::IpAddress([10, 0, 0, 7].into())];
        change(&mut params);
        let text = params
            .serialize_request(&KeyPair::generate().unwrap())
            .unwrap()
            .pem()
            .unwrap();
        json!({
            "metadata": {"labels": {mark::MANAGED_BY: mark::MANAGED_BY_US}},
            "spec": {
                "request": ByteString(text.into_bytes()), "signerName": SIGNER, "username": USER,
                "usages": ["digital signature", "server auth"],
                "extra": {POD_OF_TOKEN: ["fabric-0"]},
            },
        })
    }

    fn text(request: &Value) -> String {
        let ByteString(text) = serde_json::from_value(request["spec"]["request"].clone()).unwrap();
        String::from_utf8(text).unwrap()
    }

    /// The conditions of the request after a round.
    async fn decided(request: Value, change: impl FnOnce(&FakeApi)) -> Value {
        let home = FakeApi::start().await;
        home.put(
            POD,
            json!({
                "metadata": {"labels": {"app.kubernetes.io/component": "fabric"}},
                "spec": {"serviceAccountName": "liqo-csi-fabric", "containers": []},
                "status": {"podIP": "10.0.0.7"},
            }),
        );
        home.put(REQUEST, request);
        change(&home);
        let cluster = home.cluster_unwatched().await;
        ServingCertificates::new(&cluster, "ours").round().await.unwrap();
        home.object(REQUEST).unwrap()["status"]["conditions"].clone()
    }

    #[tokio::test]
    async fn a_request_of_a_fabric_pod_for_itself_is_approved() {
        let conditions = decided(request(|_| {}), |_| {}).await;
        assert_eq!(
            (&conditions[0]["type"], &conditions[0]["status"]),
            (&json!("Approved"), &json!("True"))
        );
    }

    #[tokio::test]
    async fn other_requests_are_not_approved() {
        let of = |key: &'static str, value: Value| {
            let mut request = request(|_| {});
            request["spec"][key] = value;
            request
        };
        let named =
            |kind: DnType, name: &'static str| request(move |it| it.distinguished_name.push(kind, name));
        let with_names = |names: Vec<SanType>| request(move |it| it.subject_alt_names = names);
        let joined = |first: String, second: &Value| {
            of(
                "request",
                json!(ByteString(format!("{first}{}", text(second)).into_bytes())),
            )
        };
        let other_node = named(DnType::CommonName, "system:node:worker-1");
        let own_text = text(&request(|_| {}));
        let skipped_by_go = own_text.replace("END CERTIFICATE REQUEST", "END X");
        let (own, other): (IpAddr, IpAddr) = ([10, 0, 0, 7].into(), [10, 0, 0, 8].into());
        let dns = SanType::DnsName("worker-1".try_into().unwrap());
        for (what, request) in [
            (
                "of another signer",
                of("signerName", json!("kubernetes.io/kube-apiserver-client")),
            ),
            (
                "of another account",
                of("username", json!("system:serviceaccount:theirs:liqo-csi-fabric")),
            ),
            (
                "for clients",
                of(
                    "usages",
                    json!(["client auth", "digital signature", "server auth"]),
                ),
            ),
            (
                "unreadable",
                of("request", json!(ByteString(b"nothing".to_vec()))),
            ),
            ("two blocks", joined(own_text, &other_node)),
            (
                "two blocks, one of which Go skips",
                joined(skipped_by_go, &other_node),
            ),
            (
                "with the token of another pod",
                of("extra", json!({POD_OF_TOKEN: ["fabric-1"]})),
            ),
            ("with a token of no pod", of("extra", Value::Null)),
            ("for a node", named(DnType::CommonName, "system:node:worker-1")),
            (
                "for an administrator",
                named(DnType::OrganizationName, "system:masters"),
            ),
            ("for another address", with_names(vec![SanType::IpAddress(other)])),
            (
                "for one more address",
                with_names(vec![SanType::IpAddress(own), SanType::IpAddress(other)]),
            ),
            ("for a name", with_names(vec![SanType::IpAddress(own), dns])),
            ("for no address", with_names(Vec::new())),
        ] {
            assert_eq!(decided(request, |_| {}).await, Value::Null, "{what}");
        }
        for (what, change) in [
            ("of a pod that is gone", (|it| it.remove(POD)) as fn(&FakeApi)),
            ("of a pod of another account", |it| {
                it.change(POD, |pod| pod["spec"]["serviceAccountName"] = "default".into());
            }),
            ("of a pod elsewhere", |it| {
                it.change(POD, |pod| pod["status"]["podIP"] = "10.0.0.9".into());
            }),
        ] {
            assert_eq!(decided(request(|_| {}), change).await, Value::Null, "{what}");
        }
    }

    #[tokio::test]
    async fn a_request_denied_by_an_administrator_is_not_approved() {
        let denied = json!([{"type": "Denied", "status": "True"}]);
        let mut of = request(|_| {});
        of["status"] = json!({ "conditions": denied });
        assert_eq!(decided(of, |_| {}).await, denied);
    }
}
