//! The kubelet's API, called over TLS as by an API server, with two fake API servers and a fake remote end of streams.

mod callers;
mod certificates;
mod remote;
mod serving;
mod usage;

use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
};

use http::StatusCode;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair};
use rustls::{
    ClientConfig,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use self::remote::{Act, Remote};
use super::*;
use crate::{
    cluster::{Rights, testing::FakeApi},
    fleet::{Connected, Link},
    placement::{Declared, Mapped, Namespaces, NodeRule},
    topology::LabelSelector,
};

const POD: &str = "/api/v1/namespaces/shop/pods/web";
const POD_THERE: &str = "/api/v1/namespaces/shop-home/pods/web";
const SYSTEM: &str = "/api/v1/namespaces/kube-system";
const CLIENT_CA: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
fn remote_cluster(name: &str) -> String {
    format!("/apis/storage.liqo.io/v1alpha1/remoteclusters/{name}")
}

const REVIEW: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews/last";

const EXEC: &str = "POST /exec/shop/web/app?command=cat&input=1&output=1";
const LOGS: &str = "GET /containerLogs/shop/web/app";
const SPDY: &str = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v5.channel.k8s.io\r\n\
                    X-Stream-Protocol-Version: v4.channel.k8s.io\r\n";

/// The CA of the clients of a cluster.
struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A client certificate with this group.
    fn issue(&self, group: &str) -> ClientCertificate {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver-kubelet-client");
        params.distinguished_name.push(DnType::OrganizationName, group);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (
            certificate.der().clone(),
            PrivatePkcs8KeyDer::from(key.serialize_der()),
        )
    }
}

/// A loopback address for one world: no other socket gets a port of it that becomes free.
fn own_host() -> Ipv4Addr {
    static WORLDS: AtomicU16 = AtomicU16::new(0);
    let [high, low] = WORLDS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    Ipv4Addr::new(127, 1, high, low)
}

type ClientCertificate = (CertificateDer<'static>, PrivatePkcs8KeyDer<'static>);

/// A home cluster with a pod that runs in the cluster `milan`, and the API in front of them.
struct World {
    home: FakeApi,
    there: FakeApi,
    remote: Remote,
    ca: Ca,
    /// The addresses of the nodes `to-milan` and `to-rome`.
    address: SocketAddr,
    other: SocketAddr,
    metrics: Metrics,
    meters: Meters,
    stop: CancellationToken,
    served: JoinHandle<()>,
}

impl World {
    async fn new(act: Act) -> Self {
        Self::bounded(act, Bounds::default()).await
    }

    async fn bounded(act: Act, bounds: Bounds) -> Self {
        let (home, there) = (FakeApi::start().await, FakeApi::start().await);
        let ca = Ca::new();
        let system = home.put(SYSTEM, json!({}));
        home.put(CLIENT_CA, json!({"data": {"client-ca-file": ca.0.pem()}}));
        let annotations = json!({
            "fabric.storage.liqo.io/remote-cluster": "milan",
            "fabric.storage.liqo.io/remote-namespace": "shop-home",
        });
        let spec = json!({"nodeName": "to-milan", "containers": []});
        let pod = home.put(
            POD,
            json!({"metadata": {"annotations": annotations}, "spec": spec}),
        );
        there.put(
            POD_THERE,
            json!({"spec": {"containers": []}, "metadata": {"annotations": {
                "fabric.storage.liqo.io/home-pod-uid": pod["metadata"]["uid"],
                "fabric.storage.liqo.io/home-uid": system["metadata"]["uid"],
            }}}),
        );
        let remote = Remote::start(act).await;
        let registry = registry(&there, &remote).await;
        let host = own_host();
        let settings = Settings {
            address: (host, 0).into(),
            ports: 2,
            pod_ip: Some([127, 0, 0, 1].into()),
            name: "liqo-csi-fabric-0".into(),
        };
        let metrics = Metrics::default();
        let mut streams = Streams::bind(settings, metrics.clone()).await.unwrap();
        streams.bounds = bounds;
        let [address, other] = [0, 1].map(|at| (host, streams.ports()[at]).into());
        for (name, port) in [("milan", streams.ports()[0]), ("rome", streams.ports()[1])] {
            let spec =
                json!({"kubeconfigSecretRef": {"name": name}, "fabric": {"nodeName": format!("to-{name}")}});
            let status = json!({"virtualNode": {"port": port}});
            home.put(&remote_cluster(name), json!({"spec": spec, "status": status}));
        }
        let (meters, stop) = (Meters::default(), CancellationToken::new());
        let served = tokio::spawn(streams.serve(
            home.cluster_unwatched().await,
            registry,
            meters.clone(),
            stop.clone(),
        ));
        let world = Self {
            home,
            there,
            remote,
            ca,
            address,
            other,
            metrics,
            meters,
            stop,
            served,
        };
        // Client certificates are requested only after the client CA was read.
        while world.request("GET /containerLogs/no/such/pod", "").await.0 == StatusCode::UNAUTHORIZED {
            tokio::task::yield_now().await;
        }
        world
    }

    async fn call(&self, certificate: Option<ClientCertificate>) -> io::Result<Connection> {
        Self::call_at(self.address, certificate).await
    }

    async fn call_at(address: SocketAddr, certificate: Option<ClientCertificate>) -> io::Result<Connection> {
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate));
        let mut config = match certificate {
            Some((certificate, key)) => builder
                .with_client_auth_cert(vec![certificate], PrivateKeyDer::from(key))
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let socket = TcpStream::connect(address).await?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let socket = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
        Ok(Connection(socket))
    }

    async fn call_as_api_server(&self) -> Connection {
        self.call(Some(self.ca.issue("system:masters"))).await.unwrap()
    }

    /// An open stream.
    async fn stream(&self, line: &str) -> Connection {
        let mut call = self.call_as_api_server().await;
        let (status, head) = call.send(line, SPDY).await;
        assert_eq!(status, StatusCode::SWITCHING_PROTOCOLS, "{head}");
        call
    }

    /// Sends a request as the API server.
    async fn request(&self, line: &str, headers: &str) -> (StatusCode, String) {
        self.call_as_api_server().await.request(line, headers).await
    }

    /// Sends a request as the API server to the node at this address.
    async fn request_at(&self, address: SocketAddr, line: &str, headers: &str) -> (StatusCode, String) {
        let certificate = Some(self.ca.issue("system:masters"));
        let mut call = Self::call_at(address, certificate).await.unwrap();
        call.request(line, headers).await
    }

    fn change(api: &FakeApi, path: &str, pointer: &str, value: Value) {
        let changed = api.change(path, |it| *it.pointer_mut(pointer).unwrap() = value);
        assert!(changed, "{path} is not there");
    }
}

async fn registry(there: &FakeApi, remote: &Remote) -> Registry {
    let Link::Up(up) = Link::up(there, Rights::ALL).await else {
        unreachable!("it is up");
    };
    let kubeconfig = json!({
        "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", remote.address)}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "of-the-driver"}}],
        "current-context": "c",
    });
    let link = Link::Up(Arc::new(Connected {
        cluster: up.cluster.clone(),
        version: up.version.clone(),
        uid: up.uid.clone(),
        kubeconfig: Some(kubeconfig.to_string().into()),
    }));
    let declared = Declared {
        nodes: NodeRule::Labels(LabelSelector(Vec::new())),
        namespaces: Namespaces {
            mapping: [("shop".to_owned(), Mapped::To("shop-home".to_owned()))].into(),
            same_name: false,
        },
        ..Declared::plain("milan")
    };
    Registry::fixed([(declared, link)])
}

struct Connection(TlsStream<TcpStream>);

impl Connection {
    /// Sends a request and returns the head of the answer.
    async fn send(&mut self, line: &str, headers: &str) -> (StatusCode, String) {
        let request = format!("{line} HTTP/1.1\r\nHost: node\r\n{headers}\r\n");
        self.0.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(self.0.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head)
    }

    /// Sends a request and returns head and body of the answer.
    async fn request(&mut self, line: &str, headers: &str) -> (StatusCode, String) {
        let (status, mut head) = self.send(line, headers).await;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        head += std::str::from_utf8(&body).unwrap();
        (status, head)
    }

    async fn read_to_end(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        self.0.read_to_end(&mut rest).await.unwrap();
        rest
    }
}

/// Accepts every certificate, as an API server without `--kubelet-certificate-authority`.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
