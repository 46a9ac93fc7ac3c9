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
        Policy::default(),
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
async fn volumes_that_do_not_exist() {
    let (_api, controller) = controller().await;
    for unknown in ["fake", "v1:home:x", &id(1)] {
        assert_eq!(delete(&controller, unknown).await, Code::Ok, "{unknown}");
        assert_eq!(unpublish(&controller, unknown).await, Code::Ok, "{unknown}");
        assert_eq!(publish(&controller, unknown, "n", true).await, Code::NotFound);
        assert_eq!(validate(&controller, unknown, true).await, Code::NotFound);
    }
}

/// After a downgrade "there is no such volume" would be a lie, and would leak it.
#[tokio::test]
async fn volumes_of_a_newer_driver_are_neither_there_nor_gone() {
    let (api, controller) = controller().await;
    let newer = format!("{}:1", id(1).replace("v1:", "v2:"));
    assert_eq!(delete(&controller, &newer).await, Code::Unavailable);
    assert_eq!(publish(&controller, &newer, "n", true).await, Code::Unavailable);
    assert_eq!(unpublish(&controller, &newer).await, Code::Unavailable);
    assert_eq!(validate(&controller, &newer, true).await, Code::Unavailable);
    assert_eq!(api.writes(), 0);
}

#[tokio::test]
async fn fields_are_asked_for_before_anything_else() {
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
async fn another_clusters_volume_is_neither_there_nor_gone() {
    let (_api, controller) = controller().await;
    let elsewhere = id(1).replace(":home:", ":away:");
    assert_eq!(delete(&controller, &elsewhere).await, Code::Unavailable);
    assert_eq!(validate(&controller, &elsewhere, true).await, Code::Unavailable);
    // Nothing was ever attached for it here, and never is.
    assert_eq!(unpublish(&controller, &elsewhere).await, Code::Ok);
    assert_eq!(publish(&controller, &elsewhere, "n", true).await, Code::NotFound);
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
