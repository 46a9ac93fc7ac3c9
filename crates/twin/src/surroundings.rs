//! What decides where a real class works, from the views: classes, nodes with its driver, published
//! capacities, static PVs.

use std::collections::BTreeSet;

use super::CreateRequest;
use crate::{
    cluster::{ApiError, Cluster},
    placement::{Capacity, Class, ClassContext, NO_PROVISIONER, RealDriver, StaticVolume, TwinRequest},
};

/// The classes of a cluster, from the view.
pub fn classes(cluster: &Cluster) -> Vec<Class> {
    let seen = cluster.views().classes.all();
    seen.iter().map(|it| Class::clone(it)).collect()
}

pub fn ask(request: &CreateRequest) -> TwinRequest<'_> {
    TwinRequest {
        volume: &request.volume,
        size: request.spec.size.request(),
        capabilities: &request.spec.capabilities,
        preferred: &request.preferred,
    }
}

pub(super) struct ClassFacts {
    driver: RealDriver,
    capacities: Vec<Capacity>,
    volumes: Vec<StaticVolume>,
}

impl ClassFacts {
    /// For a class, on one node only or on all of them.
    pub(super) async fn about(home: &Cluster, class: &Class, only: Option<&str>) -> Result<Self, ApiError> {
        let views = home.views();
        let capacities = views.capacities.of_topic(&class.name);
        let volumes = if class.provisioner == NO_PROVISIONER {
            home.static_volumes(&class.name).await?
        } else {
            Vec::new()
        };
        Ok(Self {
            driver: driver(home, &class.provisioner, only),
            capacities: capacities.iter().map(|it| Capacity::clone(it)).collect(),
            volumes,
        })
    }

    pub(super) fn surroundings<'a>(&'a self, class: &'a Class) -> ClassContext<'a> {
        ClassContext {
            class,
            driver: &self.driver,
            capacities: &self.capacities,
            volumes: &self.volumes,
        }
    }
}

fn driver(home: &Cluster, provisioner: &str, only: Option<&str>) -> RealDriver {
    let views = home.views();
    let Some(driver) = views.drivers.get(provisioner) else {
        return RealDriver::default();
    };
    let runs_on = |node: &str| {
        let known = views.csi_nodes.get(node);
        known.is_some_and(|known| known.drivers.iter().any(|name| name == provisioner))
    };
    let registered_on: BTreeSet<String> = if let Some(node) = only {
        Some(node.to_owned())
            .filter(|node| runs_on(node))
            .into_iter()
            .collect()
    } else {
        let nodes = views.csi_nodes.all();
        let running = nodes.iter().filter(|node| runs_on(&node.node));
        running.map(|node| node.node.clone()).collect()
    };
    RealDriver {
        registered_on: Some(registered_on),
        publishes_capacity: driver.publishes_capacity,
    }
}
