//! Limits for data from remote clusters: its texts and objects become part of objects at home, and its names
//! part of requests.

use serde_json::{Map, Value};

use crate::topology::is_label;

/// The maximum length of messages: that of kubelet.
pub const LONGEST_MESSAGE: usize = 4096;
/// The maximum length of other texts, such as the id of an image.
const LONGEST_TEXT: usize = 1024;
const LONGEST_REASON: usize = 128;
const LONGEST_KEY: usize = 253;
const LONGEST_UID: usize = 64;
/// The maximum number of entries in a list, and of fields in an object.
const MOST_ENTRIES: usize = 256;
/// The maximum nesting depth.
const DEEPEST: usize = 8;
/// The maximum size of a remote pod's status, as JSON.
pub(super) const MOST: usize = 64 << 10;
/// Limits that are tried in turn until the total fits.
const LENGTHS: [usize; 4] = [LONGEST_MESSAGE, LONGEST_TEXT, 256, 64];

/// Cuts a text to at most so many bytes.
#[must_use]
pub fn cut(text: &str, longest: usize) -> String {
    let end = text.floor_char_boundary(longest);
    let cut = if end < text.len() { "…" } else { "" };
    format!("{}{cut}", &text[..end])
}

/// The first names, and how many more there are.
#[must_use]
pub fn first_names(names: &[String], most: usize) -> String {
    let first = names.get(..most).unwrap_or(names).join(", ");
    match names.len().saturating_sub(most) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Whether it is a valid object name. Names become part of URL paths, so nothing else is accepted.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let edge = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit();
    name.len() <= 253
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|it| edge(it) || matches!(it, '-' | '.'))
}

/// Whether it has the form of a uid.
#[must_use]
pub fn is_uid(uid: &str) -> bool {
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || it == b'-';
    !uid.is_empty() && uid.len() <= LONGEST_UID && uid.bytes().all(is_plain)
}

/// Whether it is a valid name of a node resource, with or without a prefix.
#[must_use]
pub fn is_resource(name: &str) -> bool {
    let (prefix, name) = name
        .rsplit_once('/')
        .map_or((None, name), |(prefix, name)| (Some(prefix), name));
    prefix.is_none_or(is_name) && is_label(name)
}

/// The status of a remote pod, with texts and lists cut so that it is no larger than [`MOST`].
#[must_use]
pub(super) fn bounded(said: &Map<String, Value>) -> Map<String, Value> {
    let mut least = Map::new();
    for longest in LENGTHS {
        least = fields(said, longest, DEEPEST);
        if length(&least) <= MOST {
            return least;
        }
    }
    // What still does not fit is dropped, the longest list first.
    while length(&least) > MOST {
        let lists = least.values_mut().filter_map(Value::as_array_mut);
        match lists
            .max_by_key(|list| list.len())
            .filter(|list| !list.is_empty())
        {
            Some(list) => list.truncate(list.len() / 2),
            None => least.clear(),
        }
    }
    least
}

fn length(said: &Map<String, Value>) -> usize {
    serde_json::to_string(said).map_or(usize::MAX, |text| text.len())
}

fn fields(all: &Map<String, Value>, longest: usize, depth: usize) -> Map<String, Value> {
    let kept = all
        .iter()
        .filter(|(key, _)| key.len() <= LONGEST_KEY)
        .take(MOST_ENTRIES);
    kept.map(|(key, value)| {
        let most = match key.as_str() {
            "message" => LONGEST_MESSAGE,
            "reason" => LONGEST_REASON,
            _ => LONGEST_TEXT,
        };
        (key.clone(), value_of(value, longest, most, depth))
    })
    .collect()
}

fn value_of(value: &Value, longest: usize, most: usize, depth: usize) -> Value {
    match value {
        Value::String(text) => cut(text, most.min(longest)).into(),
        Value::Array(_) | Value::Object(_) if depth == 0 => Value::Null,
        Value::Array(all) => {
            let all = all.iter().take(MOST_ENTRIES);
            all.map(|it| value_of(it, longest, most, depth - 1)).collect()
        }
        Value::Object(all) => fields(all, longest, depth - 1).into(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            ".{0,2000}".prop_map(Value::from)
        ];
        leaf.prop_recursive(12, 200, 40, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..40).prop_map(Value::from),
                prop::collection::hash_map(".{0,300}", inner, 0..40)
                    .prop_map(|all| Value::Object(all.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_status_is_cut_to_the_maximum_size(said in prop::collection::hash_map("[a-z]{1,20}", anything(), 0..8)) {
            let said: Map<String, Value> = said.into_iter().collect();
            let taken = bounded(&said);
            prop_assert!(length(&taken) <= MOST);
            prop_assert_eq!(bounded(&taken), taken.clone(), "what was cut once stays");
        }
    }

    #[test]
    fn a_usual_status_is_not_changed() {
        let state = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "m".repeat(4096)}});
        let said = json!({"phase": "Failed", "reason": null, "containerStatuses": [
            {"name": "web", "image": "registry/web:1", "restartCount": 3, "ready": false, "state": state},
        ]});
        let said = said.as_object().unwrap();
        assert_eq!(bounded(said), *said);
    }

    #[test]
    fn large_and_nested_lists_are_bounded() {
        let of = |count: usize| {
            (0..count)
                .map(|at| json!({"name": format!("c{at}"), "id": "x".repeat(900)}))
                .collect::<Value>()
        };
        let taken = bounded(
            json!({"phase": "Running", "few": of(3), "many": of(250)})
                .as_object()
                .unwrap(),
        );
        assert_eq!(taken["phase"], "Running");
        assert_eq!(
            (
                taken["few"].as_array().unwrap().len(),
                taken["many"].as_array().unwrap().len()
            ),
            (3, 250)
        );
        let deep = json!({"many": (0..256).map(|_| json!((0..256).map(|_| "xxxx").collect::<Value>())).collect::<Value>()});
        assert!(length(&bounded(deep.as_object().unwrap())) <= MOST);
    }

    #[test]
    fn names_uids_labels_and_resource_names_are_recognised() {
        for (text, name, uid, label) in [
            ("web-1.a", true, false, true),
            ("8e4d8f61-6d0b-4d0a-9d86-2b8c0d3a2f11", true, true, true),
            ("", false, false, false),
            ("a/b", false, false, false),
            ("a?b", false, false, false),
            ("-a", false, true, false),
            ("A_b", false, false, true),
            (&"a".repeat(65), true, false, false),
        ] {
            assert_eq!(
                (is_name(text), is_uid(text), is_label(text)),
                (name, uid, label),
                "{text}"
            );
        }
        for (text, is) in [
            ("cpu", true),
            ("example.com/gpu", true),
            ("a b", false),
            ("../gpu", false),
            ("a/b/c", false),
        ] {
            assert_eq!(is_resource(text), is, "{text}");
        }
    }
}
