//! Serves `/metrics/resource` as a kubelet does: the usage of the pods of a virtual node.

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::{
    Answer, Kubelet,
    identity::{Caller, Part},
    refusal::{Refusal, text},
    slots::Slot,
};

pub(super) const PATH: &str = "/metrics/resource";
/// Prometheus' text format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Part of a kubelet's answer.
const NO_ERROR: &str = "# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n";

impl Kubelet {
    /// The usage of the pods of the node with this port.
    pub(super) async fn usage(
        &self,
        port: u16,
        slot: &Slot,
        caller: Option<&Caller>,
        headers: &HeaderMap,
        method: &Method,
    ) -> Result<Answer, Refusal> {
        if *method != Method::GET {
            return Err(Refusal::Method(method.clone()));
        }
        let caller = self.authorizer.identify(caller, headers).await?;
        let node = self.node(port)?;
        self.authorizer
            .authorize(&caller, "get", Part::Metrics, &node)
            .await?;
        slot.authorize()?;
        let usage = self.meters.read(&node).await;
        let counters = usage.map_err(|why| Refusal::NoUsage(format!("{node}: {why}")))?;
        let mut answer = text(StatusCode::OK, counters.text() + NO_ERROR);
        let format = HeaderValue::from_static(FORMAT);
        answer.headers_mut().insert(header::CONTENT_TYPE, format);
        Ok(answer)
    }
}
