//! Plans a new twin: its real class, its selected node, and whether that can work at all. Plans for
//! remote clusters are in `remote_plan`.

use kube::ResourceExt;

use super::{
    CreateError, CreateRequest, Policy, Site,
    observation::Observation,
    planned::{Plan, Planned},
    reading::{node, nodes},
    remote_plan,
    surroundings::{ClassFacts, ask, classes},
};
use crate::{
    cluster::{ApiError, Cluster},
    placement::{
        BindingMode, ChosenClass, Class, ClassInputs, KnownClasses, RequestedClass, Target, TwinRequest,
        choose_class,
    },
    topology::{CLUSTER_KEY, Node},
    volume::mark,
};

pub(super) async fn plan(
    site: &Site,
    policy: &Policy,
    request: &CreateRequest,
    observation: &Observation,
) -> Result<Plan, CreateError> {
    if let Some(remote) = site.remote_cluster() {
        return Box::pin(remote_plan::plan(site, remote, policy, request, observation)).await;
    }
    let home = site.home();
    let classes = classes(home);
    let inputs = ClassInputs {
        annotation: observation
            .claim
            .as_ref()
            .and_then(|claim| RequestedClass::read(claim.annotations(), &[mark::REAL_CLASS])),
        allowed: &policy.allowed_classes,
        parameter: request.spec.parameters.real_class.as_deref(),
        mapping: None,
        one_namespace: !request.spec.parameters.shared_namespace,
    };
    let chosen = choose_class(&inputs, KnownClasses::Listed(&classes), home.id())?;
    let ChosenClass::Known(class) = chosen else {
        return Ok(Plan::Make(Planned {
            class: chosen.name().to_owned(),
            ..Planned::default()
        }));
    };
    Ok(
        match node_for(home, &ask(request), &observation.facts.target, class).await? {
            Ok(node) => Plan::Make(Planned {
                class: class.name.clone(),
                provisioner: Some(class.provisioner.clone()),
                node,
                ..Planned::default()
            }),
            Err(unfit) => Plan::Unfit(unfit),
        },
    )
}

/// The selected node of the twin, or why no node fits.
pub async fn node_for(
    home: &Cluster,
    ask: &TwinRequest<'_>,
    target: &Target,
    class: &Class,
) -> Result<Result<Option<String>, String>, ApiError> {
    match target {
        Target::Node(name) => {
            let Some(node) = node(home, name).await? else {
                return Ok(Err(format!("the node {name} does not exist any more")));
            };
            let known = ClassFacts::about(home, class, Some(name)).await?;
            let unfit = known.surroundings(class).unfit(&node, ask);
            Ok(unfit.map_or_else(|| Ok(Some(name.clone())), |unfit| Err(unfit.to_string())))
        }
        Target::Any | Target::Disagrees { .. } if class.binding == BindingMode::Immediate => Ok(Ok(None)),
        target => {
            let known = ClassFacts::about(home, class, None).await?;
            let mut nodes = nodes(home);
            nodes.retain(|node| is_home_node(home, node) && target.allows(&node.name));
            let surroundings = known.surroundings(class);
            let choice = surroundings.choose_node(&nodes, ask);
            Ok(choice
                .map(|node| Some(node.name.clone()))
                .map_err(|none| none.to_string()))
        }
    }
}

/// Whether a node belongs to this cluster, and does not represent another one.
fn is_home_node(home: &Cluster, node: &Node) -> bool {
    let cluster = node.labels.get(CLUSTER_KEY);
    cluster.is_none_or(|cluster| cluster == home.id().as_str())
}
