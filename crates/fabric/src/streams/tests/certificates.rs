//! The serving certificate.

use k8s_openapi::ByteString;
use rcgen::CertificateSigningRequestParams;

use super::*;

const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests/";

/// Waits for the request and returns its path.
async fn request(home: &FakeApi) -> (String, Value) {
    home.until(|store| !store.below(REQUESTS).is_empty()).await;
    let request = home.store().below(REQUESTS).pop().unwrap();
    let name = request["metadata"]["name"].as_str().unwrap();
    (format!("{REQUESTS}{name}"), request)
}

fn text(request: &Value) -> String {
    let ByteString(text) = serde_json::from_value(request["spec"]["request"].clone()).unwrap();
    String::from_utf8(text).unwrap()
}

/// Signs an approved request as Kubernetes does.
fn sign(home: &FakeApi, path: &str, request: &Value, ca: &Ca) -> CertificateDer<'static> {
    let asked = CertificateSigningRequestParams::from_pem(&text(request)).unwrap();
    let signed = asked.signed_by(&ca.0).unwrap();
    publish(home, path, signed.pem());
    signed.der().clone()
}

fn publish(home: &FakeApi, path: &str, certificate: String) {
    let signed = json!(ByteString(certificate.into_bytes()));
    assert!(home.change(path, |it| it["status"]["certificate"] = signed));
}

fn spec() -> CertificateSpec {
    CertificateSpec {
        node: "liqo-csi-fabric-0".into(),
        address: Some([10, 0, 0, 7].into()),
    }
}

async fn obtained(
    home: &FakeApi,
    spec: CertificateSpec,
) -> Result<(CertifiedKey, Duration), certificate::CertificateError> {
    let provider = rustls::crypto::ring::default_provider();
    certificate::obtain(&home.cluster_unwatched().await, &spec, &provider).await
}

#[tokio::test]
async fn the_signed_certificate_is_served() {
    let world = World::new(Act::Echo).await;
    let shown = async || {
        let call = world.call_as_api_server().await;
        call.0.get_ref().1.peer_certificates().unwrap()[0]
            .clone()
            .into_owned()
    };
    let (path, made) = request(&world.home).await;
    let first = shown().await;
    let signed = sign(&world.home, &path, &made, &world.ca);
    assert_ne!(first, signed);
    while shown().await != signed {
        tokio::task::yield_now().await;
    }
    // The certificate works for requests.
    assert_eq!(world.request(EXEC, SPDY).await.0, StatusCode::SWITCHING_PROTOCOLS);
}

#[tokio::test]
async fn the_request_meets_the_rules_of_the_kubelet_serving_signer() {
    let home = FakeApi::start().await;
    let signing = async {
        let (path, made) = request(&home).await;
        sign(&home, &path, &made, &Ca::new());
        made
    };
    let (outcome, made) = tokio::join!(obtained(&home, spec()), signing);
    assert!(outcome.unwrap().1 > Duration::from_mins(1));
    // It has no right to approve.
    assert!(!home.requests().iter().any(|it| it.starts_with("PATCH")));
    assert_eq!(made["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(
        made["spec"]["usages"],
        json!(["digital signature", "server auth"])
    );
    let params = CertificateSigningRequestParams::from_pem(&text(&made))
        .unwrap()
        .params;
    let subject: Vec<_> = params
        .distinguished_name
        .iter()
        .map(|(kind, value)| (kind.clone(), format!("{value:?}")))
        .collect();
    assert_eq!(subject.len(), 2);
    assert!(subject[0].1.contains("system:nodes") && subject[0].0 == DnType::OrganizationName);
    assert!(subject[1].1.contains("system:node:liqo-csi-fabric-0") && subject[1].0 == DnType::CommonName);
    assert_eq!(
        params.subject_alt_names,
        [rcgen::SanType::IpAddress([10, 0, 0, 7].into())]
    );
}

#[tokio::test]
async fn failed_certificate_requests_are_reported() {
    for (expected, deed) in [
        ("was denied: who is that?", 0),
        ("is gone", 1),
        ("cannot be used", 2),
        ("is empty", 3),
    ] {
        let home = FakeApi::start().await;
        let deciding = async {
            let (path, _) = request(&home).await;
            match deed {
                0 => {
                    let denied = json!([{"type": "Denied", "status": "True", "message": "who is that?"}]);
                    home.change(&path, |it| it["status"]["conditions"] = denied);
                }
                1 => home.remove(&path),
                // The certificate of another key.
                2 => publish(&home, &path, Ca::new().0.pem()),
                _ => publish(&home, &path, "no certificate".to_owned()),
            }
        };
        let (outcome, ()) = tokio::join!(obtained(&home, spec()), deciding);
        let error = outcome.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
