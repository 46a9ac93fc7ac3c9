//! Calls that end before a twin is touched, and the pages of a list.

use serde_json::json;
use tonic::Code;
use wire::{
    controller_server::Controller as _,
    volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode},
};

use super::*;
use crate::{cluster::testing::FakeApi, volume::mark};

async fn controller() -> (FakeApi, Controller) {
    let api = FakeApi::start().await;
    let controller = Controller::new(
        api.cluster().await,
        Registry::default(),
        Policy {
            namespace: "ours".into(),
            ..Policy::default()
        },
        Work::default(),
        CreateLimiter::new(1),
    );
    (api, controller)
}

fn id(number: usize) -> String {
    format!("v1:home:{}", VolumeName::from_request(&number.to_string()))
}

fn capability() -> wire::VolumeCapability {
    wire::VolumeCapability {
        access_type: Some(AccessType::Mount(MountVolume::default())),
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeWriter.into(),
        }),
    }
}

fn code<T>(answer: Answer<T>) -> Code {
    answer.err().map_or(Code::Ok, |status| status.code())
}

async fn delete(controller: &Controller, id: &str) -> Code {
    let request = wire::DeleteVolumeRequest {
        volume_id: id.into(),
        ..Default::default()
    };
    code(controller.delete_volume(Request::new(request)).await)
}

async fn publish(controller: &Controller, id: &str, node: &str, able: bool) -> Code {
    let request = wire::ControllerPublishVolumeRequest {
        volume_id: id.into(),
        node_id: node.into(),
        volume_capability: able.then(capability),
        ..Default::default()
    };
    code(controller.controller_publish_volume(Request::new(request)).await)
}

async fn unpublish(controller: &Controller, id: &str) -> Code {
    let request = wire::ControllerUnpublishVolumeRequest {
        volume_id: id.into(),
        ..Default::default()
    };
    code(
        controller
            .controller_unpublish_volume(Request::new(request))
            .await,
    )
}

async fn validate(controller: &Controller, id: &str, able: bool) -> Code {
    let request = wire::ValidateVolumeCapabilitiesRequest {
        volume_id: id.into(),
        volume_capabilities: able.then(capability).into_iter().collect(),
        ..Default::default()
    };
    code(
        controller
            .validate_volume_capabilities(Request::new(request))
            .await,
    )
}

#[tokio::test]
async fn calls_for_volumes_that_do_not_exist_have_the_codes_of_csi() {
    let (_api, controller) = controller().await;
    for unknown in ["fake", "v1:home:x", &id(1)] {
        assert_eq!(delete(&controller, unknown).await, Code::Ok, "{unknown}");
        assert_eq!(unpublish(&controller, unknown).await, Code::Ok, "{unknown}");
        assert_eq!(publish(&controller, unknown, "n", true).await, Code::NotFound);
        assert_eq!(validate(&controller, unknown, true).await, Code::NotFound);
    }
}

/// After a downgrade "there is no such volume" would be false, and would leak the volume.
#[tokio::test]
async fn volumes_of_a_newer_driver_are_neither_found_nor_missing() {
    let (api, controller) = controller().await;
    let newer = format!("{}:1", id(1).replace("v1:", "v3:"));
    assert_eq!(delete(&controller, &newer).await, Code::Unavailable);
    assert_eq!(publish(&controller, &newer, "n", true).await, Code::Unavailable);
    assert_eq!(unpublish(&controller, &newer).await, Code::Unavailable);
    assert_eq!(validate(&controller, &newer, true).await, Code::Unavailable);
    assert_eq!(api.writes(), 0);
}

#[tokio::test]
async fn required_fields_are_checked_first() {
    let (_api, controller) = controller().await;
    assert_eq!(delete(&controller, "").await, Code::InvalidArgument);
    assert_eq!(unpublish(&controller, "").await, Code::InvalidArgument);
    for (id, node, able) in [("", "n", true), ("fake", "", true), ("fake", "n", false)] {
        assert_eq!(publish(&controller, id, node, able).await, Code::InvalidArgument);
    }
    assert_eq!(validate(&controller, "", true).await, Code::InvalidArgument);
    assert_eq!(validate(&controller, "fake", false).await, Code::InvalidArgument);
    let create = controller.create_volume(Request::new(wire::CreateVolumeRequest::default()));
    assert_eq!(code(create.await), Code::InvalidArgument);
}

#[tokio::test]
async fn volumes_of_another_cluster_are_neither_found_nor_missing() {
    let (_api, controller) = controller().await;
    let elsewhere = id(1).replace(":home:", ":away:");
    assert_eq!(delete(&controller, &elsewhere).await, Code::Unavailable);
    assert_eq!(validate(&controller, &elsewhere, true).await, Code::Unavailable);
    // Nothing is ever attached for it here.
    assert_eq!(unpublish(&controller, &elsewhere).await, Code::Ok);
    assert_eq!(publish(&controller, &elsewhere, "n", true).await, Code::NotFound);
}

/// The request of an orchestrator that does not know this driver, such as csi-sanity.
#[tokio::test]
async fn capacity_is_returned_for_any_omitted_field() {
    let (_api, controller) = controller().await;
    let asked = controller.get_capacity(Request::new(wire::GetCapacityRequest::default()));
    let told = asked.await.unwrap().into_inner();
    assert_eq!((told.available_capacity, told.maximum_volume_size), (0, Some(0)));
}

#[tokio::test]
async fn capacity_is_that_of_the_requested_topology() {
    let (api, controller) = controller().await;
    let labels = json!({"topology.storage.liqo.io/cluster": "home", "topology.storage.liqo.io/node": "n1"});
    api.put("/api/v1/nodes/n1", json!({"metadata": {"labels": labels}}));
    let mut seen = controller.home.views().nodes.version();
    while controller.home.views().nodes.all().is_empty() {
        seen.changed().await.unwrap();
    }
    for (node, expected) in [("n1", 1 << 62), ("n2", 0)] {
        let segments = [("topology.storage.liqo.io/node".to_owned(), node.to_owned())].into();
        let request = wire::GetCapacityRequest {
            accessible_topology: Some(wire::Topology { segments }),
            ..Default::default()
        };
        let told = controller.get_capacity(Request::new(request)).await.unwrap();
        assert_eq!(told.into_inner().available_capacity, expected, "{node}");
    }
}

async fn list(controller: &Controller, max_entries: i32, token: &str) -> Answer<wire::ListVolumesResponse> {
    let starting_token = token.to_owned();
    let request = wire::ListVolumesRequest {
        max_entries,
        starting_token,
    };
    controller.list_volumes(Request::new(request)).await
}

#[tokio::test]
async fn lists_are_paged_by_name() {
    let (api, controller) = controller().await;
    for number in 0..5 {
        let volume = VolumeName::from_request(&number.to_string());
        let labels = json!({
            mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::VOLUME: volume.as_str(),
        });
        let metadata = json!({"labels": labels, "annotations": {mark::HANDED_OVER: "true"}});
        let path = format!("/api/v1/namespaces/liqo-storage/persistentvolumeclaims/{volume}");
        api.put(&path, json!({"metadata": metadata}));
    }
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = list(&controller, 2, &token).await.unwrap().into_inner();
        seen.extend(
            page.entries
                .into_iter()
                .filter_map(|entry| Some(entry.volume?.volume_id)),
        );
        pages += 1;
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    let mut expected: Vec<_> = (0..5).map(id).collect();
    expected.sort();
    assert_eq!((seen, pages), (expected, 3));
    assert_eq!(
        list(&controller, 0, "").await.unwrap().into_inner().entries.len(),
        5
    );
    assert_eq!(code(list(&controller, 0, "invalid-token").await), Code::Aborted);
    assert_eq!(code(list(&controller, -1, "").await), Code::InvalidArgument);
}

async fn cut(controller: &Controller, name: &str, volume: &str) -> Code {
    let request = wire::CreateSnapshotRequest {
        name: name.into(),
        source_volume_id: volume.into(),
        ..Default::default()
    };
    code(controller.create_snapshot(Request::new(request)).await)
}

async fn delete_snapshot(controller: &Controller, id: &str) -> Code {
    let request = wire::DeleteSnapshotRequest {
        snapshot_id: id.into(),
        ..Default::default()
    };
    code(controller.delete_snapshot(Request::new(request)).await)
}

async fn get_snapshot(controller: &Controller, id: &str) -> Code {
    let request = wire::GetSnapshotRequest {
        snapshot_id: id.into(),
        ..Default::default()
    };
    code(controller.get_snapshot(Request::new(request)).await)
}

async fn list_snapshots(
    controller: &Controller,
    request: wire::ListSnapshotsRequest,
) -> Answer<wire::ListSnapshotsResponse> {
    controller.list_snapshots(Request::new(request)).await
}

#[tokio::test]
async fn calls_for_snapshots_that_do_not_exist_have_the_codes_of_csi() {
    let (api, controller) = controller().await;
    for unknown in [
        "fake",
        "s1:home::x",
        "s1:home::0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111",
    ] {
        assert_eq!(delete_snapshot(&controller, unknown).await, Code::Ok, "{unknown}");
        assert_eq!(get_snapshot(&controller, unknown).await, Code::NotFound);
        let request = wire::ListSnapshotsRequest {
            snapshot_id: unknown.into(),
            ..Default::default()
        };
        let page = list_snapshots(&controller, request).await.unwrap().into_inner();
        assert!(page.entries.is_empty(), "{unknown}");
    }
    assert_eq!(cut(&controller, "s", "fake").await, Code::NotFound);
    assert_eq!(cut(&controller, "s", &id(1)).await, Code::NotFound);
    let newer = "s2:home::0c4f3f2e-8a51-4f0e-9f0f-0d2c7ef1a111";
    assert_eq!(delete_snapshot(&controller, newer).await, Code::Unavailable);
    assert_eq!(get_snapshot(&controller, newer).await, Code::Unavailable);
    assert_eq!(api.writes(), 0);
}

#[tokio::test]
async fn required_fields_of_snapshots_are_checked_first() {
    let (_api, controller) = controller().await;
    assert_eq!(cut(&controller, "", &id(1)).await, Code::InvalidArgument);
    assert_eq!(cut(&controller, "s", "").await, Code::InvalidArgument);
    assert_eq!(delete_snapshot(&controller, "").await, Code::InvalidArgument);
    assert_eq!(get_snapshot(&controller, "").await, Code::InvalidArgument);
    let request = wire::ListSnapshotsRequest {
        starting_token: "invalid-token".into(),
        ..Default::default()
    };
    assert_eq!(code(list_snapshots(&controller, request).await), Code::Aborted);
    let request = wire::ListSnapshotsRequest {
        max_entries: -1,
        ..Default::default()
    };
    assert_eq!(
        code(list_snapshots(&controller, request).await),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn lists_of_snapshots_are_paged_by_id() {
    let (api, controller) = controller().await;
    let mut expected = Vec::new();
    for number in 0..5 {
        let key = crate::volume::SnapshotKey::from_request(&number.to_string());
        expected.push(format!("s1:home::{key}"));
        let labels = json!({
            mark::MANAGED_BY: mark::MANAGED_BY_US, mark::HOME_CLUSTER: "home", mark::SNAPSHOT: key.as_str(),
        });
        let path = "/apis/snapshot.storage.k8s.io/v1/namespaces/liqo-storage/volumesnapshots";
        api.put(
            &format!("{path}/{}", key.twin()),
            json!({
                "metadata": {"labels": labels, "annotations": {mark::SNAPSHOT_SOURCE: id(1)}}, "spec": {},
                "status": {"creationTime": "2026-01-01T00:00:00Z"},
            }),
        );
    }
    expected.sort();
    let (mut seen, mut token, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let request = wire::ListSnapshotsRequest {
            max_entries: 2,
            starting_token: token,
            source_volume_id: id(1),
            ..Default::default()
        };
        let page = list_snapshots(&controller, request).await.unwrap().into_inner();
        let snapshots = page.entries.into_iter().filter_map(|entry| entry.snapshot);
        seen.extend(snapshots.map(|one| one.snapshot_id));
        pages += 1;
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!((seen, pages), (expected, 3));
}
