//! Whether the pods that use the claims could run where the volumes will be. Otherwise the move would succeed, and the
//! pods that their controllers create again would wait for ever.

use k8s_openapi::api::core::v1::{Node as KubeNode, Pod};
use kube::ResourceExt;

use super::target::{ApiResult, TargetSite, nodes};
use crate::{
    cluster::{Cluster, facts, slim::consumer},
    placement::{Consumer, Taint},
    topology::Node,
    volume::has_domain,
};

/// What keeps pods from running at the target.
#[derive(Default)]
pub(super) struct Unfit {
    /// Reasons that last until a user changes the pod, or the nodes.
    pub(super) certain: Vec<String>,
    /// Reasons that may not apply to new pods: admission adds the tolerations of virtual nodes, nodes recover, and an
    /// autoscaler adds others.
    pub(super) possible: Vec<String>,
}

/// What keeps these pods from running at the target, because of its nodes.
pub(super) async fn unfit(home: &Cluster, pods: &[Pod], target: &TargetSite) -> ApiResult<Unfit> {
    let mut unfit = Unfit::default();
    let its = nodes(home, target);
    if pods.is_empty() || its.is_empty() {
        return Ok(unfit);
    }
    let tainted = |node: KubeNode| {
        let taints = facts::taints(&node);
        let found = its.iter().find(|one| one.name == node.name_any())?;
        Some((found.clone(), taints))
    };
    let nodes = home.all::<KubeNode>().pick(None, None, tainted).await?;
    if nodes.is_empty() {
        return Ok(unfit);
    }
    let staying = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    for pod in staying.map(consumer) {
        let Some((why, taint)) = why_unfit(&pod, &nodes) else {
            continue;
        };
        let why = format!("the pod {} could not run at the target: {why}", pod.name);
        let may_change = match (target, taint) {
            (TargetSite::Home(None), _) => true,
            (TargetSite::Remote(..), taint) => taint.is_some(),
            (_, taint) => taint.is_some_and(|taint| has_domain(&taint.key, "node.kubernetes.io")),
        };
        if may_change {
            unfit.possible.push(why);
        } else {
            unfit.certain.push(why);
        }
    }
    Ok(unfit)
}

/// Why a pod could run on none of these nodes, and because of which taint, if so.
fn why_unfit<'a>(pod: &Consumer, nodes: &'a [(Node, Vec<Taint>)]) -> Option<(String, Option<&'a Taint>)> {
    let mut selected = nodes.iter().filter(|(node, _)| pod.selects(node)).peekable();
    if selected.peek().is_none() {
        let why = "its nodeSelector and its node affinity exclude all nodes there";
        return Some((why.to_owned(), None));
    }
    let mut tainted = None;
    for (node, taints) in selected {
        let taint = pod.kept_away_by(taints)?;
        tainted.get_or_insert((node, taint));
    }
    tainted.map(|(node, taint)| {
        let why = format!(
            "it does not tolerate the taint {} of the node {}",
            taint.key, node.name
        );
        (why, Some(taint))
    })
}
