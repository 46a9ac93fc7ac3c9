//! Which real class a twin has in a remote cluster, and whether it is waited for there.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{CreateRequest, Policy, Site, mirrored, reading};
use crate::{
    fleet::Remote,
    placement::{Asked, BindingMode, ChosenClass, Class, ClassError, KnownClasses, Wishes, choose_class},
    volume::{BindingPolicy, mark},
};

/// Whether a twin may be answered for before it is bound. A class that binds at
/// once is waited for whatever the policy: it costs nothing, and failures show. So is a twin whose
/// node is known: later pods have to go where its volume is.
pub fn answered_early(
    site: &Site,
    request: &CreateRequest,
    claim: Option<&PersistentVolumeClaim>,
    class: Option<&Class>,
) -> bool {
    let Some(remote) = site.remote_cluster() else {
        return false;
    };
    if mirrored::selected(site, claim).is_some() {
        return false;
    }
    let immediate = class.is_some_and(|class| class.binding == BindingMode::Immediate);
    let policy = request.spec.parameters.binding_policy.unwrap_or(remote.policy);
    policy == BindingPolicy::Optimistic && !immediate
}

/// The real class. An administrator who maps this very class for this very
/// cluster means more by it than the parameter that holds for all clusters.
pub fn choose<'a>(
    remote: &Remote,
    policy: &Policy,
    parameter: Option<&str>,
    claim: Option<&PersistentVolumeClaim>,
    known: KnownClasses<'a>,
) -> Result<ChosenClass<'a>, ClassError> {
    let virtual_class = claim.and_then(reading::class_name);
    let mapped = virtual_class.and_then(|name| remote.classes.mapping.get(name));
    let wishes = Wishes {
        annotation: claim
            .and_then(|claim| Asked::read(claim.annotations(), &[mark::REAL_CLASS, mark::LIQO_REAL_CLASS])),
        allowed: &policy.allowed_classes,
        parameter: parameter.filter(|_| mapped.is_none()),
        mapping: remote.classes.real(virtual_class),
        one_namespace: false,
    };
    choose_class(&wishes, known, &remote.id)
}
