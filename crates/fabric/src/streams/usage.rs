//! What the pods of a virtual node use, as a kubelet says it to whoever collects metrics:
//! `/metrics/resource`.

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::{
    Answer, Kubelet,
    identity::{Caller, Part},
    refusal::{Refusal, text},
    slots::Slot,
};

/// Where it is asked for.
pub(super) const PATH: &str = "/metrics/resource";
/// Prometheus' text format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// As kubelets say it.
const NO_ERROR: &str = "# TYPE resource_scrape_error gauge\nresource_scrape_error 0\n";

impl Kubelet {
    /// What the pods use of the node that is called at this port.
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
        let caller = self.gate.identify(caller, headers).await?;
        let node = self.node(port)?;
        self.gate.admit(&caller, "get", Part::Metrics, &node).await?;
        slot.authorize()?;
        let usage = self.meters.read(&node).await;
        let counters = usage.map_err(|why| Refusal::NoUsage(format!("{node}: {why}")))?;
        let mut answer = text(StatusCode::OK, counters.text() + NO_ERROR);
        let format = HeaderValue::from_static(FORMAT);
        answer.headers_mut().insert(header::CONTENT_TYPE, format);
        Ok(answer)
    }
}
