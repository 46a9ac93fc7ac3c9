//! Plans a new twin in a remote cluster: whether that cluster can satisfy the request, the real class and
//! the access modes. The node of a twin that is waited for is selected in `remote_node`.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use super::{
    CreateError, CreateRequest, Policy, Site,
    consumers::ephemeral_of,
    mirrored,
    observation::Observation,
    planned::{Plan, Planned},
    reading,
    remote_class::{answered_early, choose},
    remote_node,
    surroundings::{ClassFacts, ask, classes},
};
use crate::{
    cluster::ApiError,
    fleet::Remote,
    placement::{
        BindingMode, ChosenClass, Class, ClassError, KnownClasses, NO_PROVISIONER, access_modes, ways_out,
    },
    volume::{AccessMode, SpecError, mark},
};

pub(super) async fn plan(
    site: &Site,
    remote: &Remote,
    policy: &Policy,
    request: &CreateRequest,
    observation: &Observation,
) -> Result<Plan, CreateError> {
    if let Some(closed) = remote.closed() {
        return Ok(Plan::Unfit(format!(
            "the cluster {} takes no new volumes, because of {closed}: let the pod run in another cluster",
            remote.id
        )));
    }
    if let Some(claim) = &observation.claim
        && let Some(pod) = ephemeral_of(site.home(), claim).await?
    {
        // This claim's problem must not reduce the capacity that is published for others.
        return Err(CreateError::NotThisClaim(format!(
            "the claim {} belongs to a generic ephemeral volume of the pod {pod}, which cannot work in the cluster {}: the pod \
             would create another claim there. Use a claim that you create yourself, or let the pod run in another cluster",
            claim.name_any(),
            remote.id
        )));
    }
    let modes = access_mode_override(request, observation.claim.as_ref())?;
    let classes = classes(site.cluster());
    let known = if site.cluster().rights().classes {
        KnownClasses::Listed(&classes)
    } else {
        KnownClasses::Unreadable
    };
    let parameter = request.spec.parameters.real_class.as_deref();
    let chosen = match choose(remote, policy, parameter, observation.claim.as_ref(), known) {
        Ok(chosen) => chosen,
        // The claim names a class that it may not use, and that is so in every cluster.
        Err(error @ ClassError::NotAllowed { .. }) => return Err(error.into()),
        // The capacity for other claims there is computed without CreateVolume, see `controllers::capacity`.
        Err(error) => {
            let class = observation.claim.as_ref().and_then(reading::class_name);
            let ways = ways_out(remote, class.unwrap_or_default(), &policy.allowed_classes);
            return Err(CreateError::NotThisClaim(format!("{error}. {ways}")));
        }
    };
    let ChosenClass::Known(class) = chosen else {
        if !answered_early(site, request, observation.claim.as_ref(), None) {
            return Err(cannot_wait("classes"));
        }
        return Ok(Plan::Make(Planned {
            class: chosen.name().to_owned(),
            access_modes: modes,
            answered_early: true,
            ..Planned::default()
        }));
    };
    let claim = observation.claim.as_ref();
    let answered_early = answered_early(site, request, claim, Some(class));
    if class.provisioner == NO_PROVISIONER && class.binding != BindingMode::Immediate && !answered_early {
        return Err(CreateError::Spec(BINDS_WITH_ITS_POD));
    }
    let planned = Planned {
        class: class.name.clone(),
        provisioner: Some(class.provisioner.clone()),
        node: None,
        access_modes: modes,
        answered_early,
    };
    if class.binding == BindingMode::Immediate || !site.cluster().rights().nodes {
        return if answered_early || class.binding == BindingMode::Immediate {
            Ok(Plan::Make(planned))
        } else {
            Err(cannot_wait("nodes"))
        };
    }
    if answered_early {
        return Ok(match fits_somewhere(site, request, class).await? {
            Ok(()) => Plan::Make(planned),
            Err(none) => Plan::Unfit(none),
        });
    }
    if let Some(node) = mirrored::selected(site, claim) {
        return Ok(match fits(site, request, class, node).await? {
            Ok(()) => Plan::Make(Planned {
                node: Some(node.to_owned()),
                ..planned
            }),
            Err(unfit) => Plan::Unfit(unfit),
        });
    }
    Ok(
        match remote_node::node(site, remote, policy, request, observation, class).await? {
            Ok(node) => Plan::Make(Planned {
                node: Some(node),
                ..planned
            }),
            Err(none) => Plan::Unfit(none),
        },
    )
}

/// This class has no provisioner. Its static PV is chosen where the pod is scheduled, and the pod is sent
/// there only after its claim at home is bound.
const BINDS_WITH_ITS_POD: SpecError = SpecError::NotRemotely {
    field: "the binding policy WaitForBound for a class of kubernetes.io/no-provisioner that waits for its first consumer",
    why: "such a volume is bound when its pod arrives there, and the pod is sent when the volume is bound: use the policy \
          Optimistic",
};

/// A twin that is waited for needs a selected node, unless its class binds immediately.
fn cannot_wait(unreadable: &'static str) -> CreateError {
    let why = if unreadable == "nodes" {
        "a class that waits for its first consumer needs a selected node there, and this driver may not read the nodes of that \
         cluster: grant that right, or use the policy Optimistic"
    } else {
        "the class decides whether a node has to be selected there, and this driver may not read the classes of that cluster: \
         grant that right, or use the policy Optimistic"
    };
    CreateError::Spec(SpecError::NotRemotely {
        field: "the binding policy WaitForBound",
        why,
    })
}

/// The access modes of the twin, if they differ from those of the claim.
fn access_mode_override(
    request: &CreateRequest,
    claim: Option<&PersistentVolumeClaim>,
) -> Result<Option<Vec<AccessMode>>, SpecError> {
    if !request.spec.capabilities.mount_flags().is_empty() {
        return Err(SpecError::NotRemotely {
            field: "mountOptions of the virtual class",
            why: "the remote cluster mounts the volume with the options of its own class: set them there",
        });
    }
    let text = claim.and_then(|claim| claim.annotations().get(mark::LIQO_ACCESS_MODES));
    text.map(|text| access_modes(text)).transpose()
}

/// Whether this node of the remote cluster can have the volume; if not, why.
async fn fits(
    site: &Site,
    request: &CreateRequest,
    class: &Class,
    node: &str,
) -> Result<Result<(), String>, ApiError> {
    let cluster = site.cluster();
    let known = ClassFacts::about(cluster, class, None).await?;
    let Some(node) = reading::node(cluster, node).await? else {
        return Ok(Err(format!("the cluster {} has no node {node}", cluster.id())));
    };
    let unfit = known.surroundings(class).unfit(&node, &ask(request));
    Ok(unfit.map_or(Ok(()), |unfit| {
        Err(format!("in the cluster {} {unfit}", cluster.id()))
    }))
}

/// Whether any node of the remote cluster can have the volume; if not, why.
async fn fits_somewhere(
    site: &Site,
    request: &CreateRequest,
    class: &Class,
) -> Result<Result<(), String>, ApiError> {
    let cluster = site.cluster();
    let known = ClassFacts::about(cluster, class, None).await?;
    let nodes = reading::nodes(cluster);
    let choice = known.surroundings(class).choose_node(&nodes, &ask(request));
    Ok(choice
        .map(|_| ())
        .map_err(|none| format!("in the cluster {} {none}", cluster.id())))
}
