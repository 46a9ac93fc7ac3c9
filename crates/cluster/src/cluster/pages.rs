//! Pages of lists: how many objects fit into an answer depends on their sizes, which other clients
//! determine.

use std::fmt::Debug;

use kube::{Api, Resource, ResourceExt, api::ListParams, core::ListMeta};
use serde::de::DeserializeOwned;

use super::{cap::is_limit_exceeded, lean::Lean};

/// A part of a list.
pub(super) struct Page<K> {
    pub(super) objects: Vec<Lean<K>>,
    /// The key of an object in this range that exceeds the limit for one object.
    pub(super) too_large: Option<String>,
    pub(super) metadata: ListMeta,
}

/// Reads a page. If it is too large, there is no page, and the next one is half as large; after each page
/// that fits it is doubled again, up to `full`. Of an object that is too large by itself only the name is
/// read.
pub(super) async fn next_page<K>(
    api: &Api<Lean<K>>,
    params: &mut ListParams,
    full: Option<u32>,
) -> Result<Option<Page<K>>, kube::Error>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    match api.list(params).await {
        Err(error) if is_limit_exceeded(&error) => {}
        listed => {
            let list = listed?;
            params.limit = params.limit.map(|size| size.saturating_mul(2)).min(full);
            return Ok(Some(Page {
                objects: list.items,
                too_large: None,
                metadata: list.metadata,
            }));
        }
    }
    let size = params.limit.unwrap_or(1) / 2;
    if size > 0 {
        params.limit = Some(size);
        return Ok(None);
    }
    let list = api.list_metadata(params).await?;
    Ok(Some(Page {
        objects: Vec::new(),
        too_large: list.items.first().map(key),
        metadata: list.metadata,
    }))
}

/// `namespace/name`, or the name alone.
pub(super) fn key<K: Resource>(object: &K) -> String {
    match object.namespace() {
        Some(namespace) => format!("{namespace}/{}", object.name_any()),
        None => object.name_any(),
    }
}
