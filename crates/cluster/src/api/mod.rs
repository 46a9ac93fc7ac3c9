//! The custom resources of this driver.

pub mod fabric;
pub mod namespace_offloading;
pub mod remote_cluster;
pub mod volume_move;

use std::time::Duration;

use schemars::{Schema, json_schema};

/// The durations that Go's `ParseDuration` accepts and that are usual: hours, minutes and seconds, in this
/// order.
const DURATION: &str = "^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,5}s)?$";

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

fn duration(_: &mut schemars::SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "minLength": 2, "maxLength": 18, "pattern": DURATION })
}

/// `90s`, `10m`, `1h30m`: hours, minutes and seconds, each at most once and in this order.
fn parse_duration(text: &str) -> Option<Duration> {
    let (mut seconds, mut rest) = (0_u64, text);
    for (unit, length) in [('h', 3600), ('m', 60), ('s', 1)] {
        let Some((amount, after)) = rest.split_once(unit) else {
            continue;
        };
        let is_number = (1..=5).contains(&amount.len()) && amount.bytes().all(|digit| digit.is_ascii_digit());
        // Hours of 5 digits cannot overflow 64 bits.
        seconds += amount.parse::<u64>().ok().filter(|_| is_number)? * length;
        rest = after;
    }
    (!text.is_empty() && rest.is_empty()).then(|| Duration::from_secs(seconds))
}
