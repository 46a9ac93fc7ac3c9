//! The custom resources of this driver.

pub mod fabric;
pub mod namespace_offloading;
pub mod remote_cluster;
pub mod volume_move;

use schemars::{Schema, json_schema};

/// The schema of Kubernetes' own conditions.
fn conditions(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "maxLength": 316 },
                "status": { "type": "string", "enum": ["True", "False", "Unknown"] },
                "observedGeneration": { "type": "integer", "format": "int64" },
                "lastTransitionTime": { "type": "string", "format": "date-time" },
                "reason": { "type": "string", "minLength": 1, "maxLength": 1024 },
                "message": { "type": "string", "maxLength": 32768 },
            },
        },
    })
}
