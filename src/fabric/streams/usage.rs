//! What pods use, as a kubelet says it to whoever collects metrics: `/metrics/resource`. Callers
//! name no node, and all virtual nodes have one address: each is told of the pods of all.

use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::{
    Answer, Kubelet,
    identity::{Caller, Part},
    refusal::{Refusal, text},
};
use crate::offload::usage::Counters;

/// Where it is asked for.
pub(super) const PATH: &str = "/metrics/resource";
/// Prometheus' text format.
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Kubelet {
    /// What the pods of all nodes use that this replica looks after.
    pub(super) async fn usage(
        &self,
        caller: Option<&Caller>,
        headers: &HeaderMap,
        method: &Method,
    ) -> Result<Answer, Refusal> {
        if *method != Method::GET {
            return Err(Refusal::Method(method.clone()));
        }
        let caller = self.gate.identify(caller, headers).await?;
        self.gate.admit(&caller, "get", Part::Metrics, None).await?;
        let (mut known, mut unknown) = (Vec::new(), Vec::new());
        for (node, usage) in self.meters.read().await {
            match usage {
                Ok(counters) => known.push(counters),
                Err(why) => unknown.push(format!("{node}: {why}")),
            }
        }
        // More than one, even if it is not known what is used there: whose would the sum be.
        let is_alone = known.len() + unknown.len() == 1;
        if known.is_empty() {
            let why = if unknown.is_empty() {
                "this replica looks after no virtual node".to_owned()
            } else {
                unknown.join("\n")
            };
            return Err(Refusal::NoUsage(why));
        }
        let mut written = Vec::new();
        written.extend(unknown.iter().map(|why| format!("# {}\n", one_line(why))));
        written.push(Counters::text(&known, is_alone));
        let errors = i32::from(!unknown.is_empty());
        written.push(format!(
            "# TYPE resource_scrape_error gauge\nresource_scrape_error {errors}\n"
        ));
        let mut answer = text(StatusCode::OK, written.concat());
        let format = HeaderValue::from_static(FORMAT);
        answer.headers_mut().insert(header::CONTENT_TYPE, format);
        Ok(answer)
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
