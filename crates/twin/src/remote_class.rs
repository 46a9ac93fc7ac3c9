//! Which real class a twin has in a remote cluster, and whether `CreateVolume` waits until it is bound.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{CreateRequest, Policy, Site, mirrored, reading};
use crate::{
    fleet::Remote,
    placement::{
        BindingMode, ChosenClass, Class, ClassError, ClassInputs, KnownClasses, RequestedClass, choose_class,
    },
    volume::{BindingPolicy, mark},
};

/// Whether `CreateVolume` may succeed before the twin is bound. With a class that binds immediately it
/// waits, whatever the policy: that costs nothing, and failures are reported. It also waits if the node
/// of the twin is known: later pods have to run where the volume is.
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

/// Chooses the real class. A mapping of this virtual class for this cluster takes precedence over the
/// parameter, which applies to all clusters.
pub fn choose<'a>(
    remote: &Remote,
    policy: &Policy,
    parameter: Option<&str>,
    claim: Option<&PersistentVolumeClaim>,
    known: KnownClasses<'a>,
) -> Result<ChosenClass<'a>, ClassError> {
    let virtual_class = claim.and_then(reading::class_name);
    let mapped = virtual_class.and_then(|name| remote.classes.mapping.get(name));
    let inputs = ClassInputs {
        annotation: claim.and_then(|claim| {
            RequestedClass::read(claim.annotations(), &[mark::REAL_CLASS, mark::LIQO_REAL_CLASS])
        }),
        allowed: &policy.allowed_classes,
        parameter: parameter.filter(|_| mapped.is_none()),
        mapping: remote.classes.real(virtual_class),
        one_namespace: false,
    };
    choose_class(&inputs, known, &remote.id)
}
