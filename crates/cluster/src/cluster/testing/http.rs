//! The HTTP interface of the fake API server.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{
        Method, Request, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};

use super::{
    faults::{Act, Faults, OtherChanges},
    life::Lives,
    store::{Lists, LoggedChange, Refused, Store},
};

#[derive(Default)]
pub(super) struct Server {
    pub(super) store: Store,
    pub(super) faults: Faults,
    pub(super) changes: OtherChanges,
    pub(super) lives: Lives,
    pub(super) requests: Mutex<Vec<String>>,
}

type Parameters = HashMap<String, String>;

pub(super) fn router(server: Arc<Server>) -> Router {
    Router::new().fallback(serve).with_state(server)
}

async fn serve(State(server): State<Arc<Server>>, request: Request<Body>) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let content = request.headers().get(CONTENT_TYPE);
    let is_strategic = content.is_some_and(|kind| kind == "application/strategic-merge-patch+json");
    let is_applied = content.is_some_and(|kind| kind == "application/apply-patch+yaml");
    let accepted = request.headers().get(ACCEPT).and_then(|it| it.to_str().ok());
    let only_metadata = accepted.is_some_and(|it| it.contains("as=PartialObjectMetadataList"));
    let lists = match (is_strategic, is_applied) {
        (true, _) => Lists::ByType,
        (_, true) => Lists::Applied,
        _ => Lists::Whole,
    };
    let query = request.uri().query().unwrap_or_default();
    let query: Parameters = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
    let watch = query
        .get("watch")
        .is_some_and(|value| value == "true" || value == "1");
    if !watch {
        server.requests.lock().unwrap().push(format!("{method} {path}"));
    }
    let body = axum::body::to_bytes(request.into_body(), usize::MAX)
        .await
        .unwrap();
    if let Some(change) = server.changes.due(method.as_str(), &path) {
        change(&server.store);
    }
    if !watch && !server.lives.go_on(method.as_str(), &path) {
        return std::future::pending().await;
    }
    match server.faults.hit(method.as_str(), &path, watch) {
        None if watch => follow(server, path, query),
        None if only_metadata => {
            let mut list = list(&server.store, &path, &query);
            for item in list["items"].as_array_mut().into_iter().flatten() {
                *item = json!({"apiVersion": "v1", "kind": "PartialObjectMetadata", "metadata": item["metadata"]});
            }
            Json(list).into_response()
        }
        Some(Act::TooLarge(text)) if String::from_utf8_lossy(&body).contains(text) => {
            refusal(413, "Request entity too large: limit is 3145728")
        }
        Some(Act::Invalid(text)) if String::from_utf8_lossy(&body).contains(text) => {
            let why = format!("the object is invalid: spec.{text}: not configured on this cluster");
            (
                StatusCode::UNPROCESSABLE_ENTITY,
                Json(status(422, "Invalid", &why)),
            )
                .into_response()
        }
        None | Some(Act::TooLarge(_) | Act::Invalid(_)) => {
            act(&server.store, &method, &path, &query, lists, &body)
        }
        Some(Act::Drop(pointer)) => {
            let mut sent: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            if let Some(parent) = sent.pointer_mut(parent).and_then(Value::as_object_mut) {
                parent.remove(field);
            }
            act(
                &server.store,
                &method,
                &path,
                &query,
                lists,
                &sent.to_string().into(),
            )
        }
        Some(Act::Refuse(code) | Act::RefuseWatch(code)) => refusal(code, "scripted"),
        Some(Act::Forbid(message)) => {
            (StatusCode::FORBIDDEN, Json(status(403, "Forbidden", message))).into_response()
        }
        Some(Act::Deny(code, message)) => refusal(code, message),
        Some(Act::Fail(code, message)) => {
            (StatusCode::CREATED, Json(status(code, message, message))).into_response()
        }
        Some(Act::DoAndRefuse(code)) => {
            act(&server.store, &method, &path, &query, lists, &body);
            refusal(code, "scripted")
        }
        Some(Act::TakeOut) => act(&server.store, &Method::GET, &path, &query, lists, &body),
        Some(Act::Hang) => std::future::pending().await,
        Some(Act::Oversize) => vec![b' '; 40 << 20].into_response(),
        Some(Act::Garbage) => "[]".into_response(),
        Some(Act::Endless) => {
            let token = query.get("continue").and_then(|token| token.parse().ok());
            let start: usize = token.unwrap_or(0);
            let items: Vec<_> = (start..start + 100).map(invented).collect();
            let next = (start + 100).to_string();
            let metadata = json!({"resourceVersion": "1", "continue": next});
            Json(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}))
                .into_response()
        }
        Some(Act::Flood) => {
            let event = |number| format!("{}\n", json!({"type": "ADDED", "object": invented(number)}));
            let events = stream::iter(0..).map(move |number| Ok::<_, Infallible>(event(number)));
            Body::from_stream(events).into_response()
        }
        Some(Act::Gone) => {
            let status = status(410, "Expired", "too old resource version");
            format!("{}\n", json!({"type": "ERROR", "object": status})).into_response()
        }
    }
}

/// One of the endless objects.
/// The ends of API groups whose resources come from CRDs.
const CUSTOM_GROUPS: [&str; 3] = ["liqo.io", "kosmos.io", "snapshot.storage.k8s.io"];

fn invented(number: usize) -> Value {
    json!({
        "apiVersion": "v1",
        "metadata": {"name": format!("invented-{number}"), "namespace": "ns", "resourceVersion": "1"},
        "data": {"color": "red"},
    })
}

fn act(
    store: &Store,
    method: &Method,
    path: &str,
    query: &Parameters,
    lists: Lists,
    body: &Bytes,
) -> Response {
    let sent = || serde_json::from_slice::<Value>(body).unwrap_or_default();
    let object = ["/status", "/approval", "/resize", "/ephemeralcontainers"]
        .iter()
        .find_map(|below| path.strip_suffix(below))
        .unwrap_or(path);
    let outcome = match *method {
        Method::GET if is_collection(path) => return Json(list(store, path, query)).into_response(),
        Method::GET if is_api(path) && store.get(path).is_none() => {
            return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
        }
        Method::GET => store.get(object).ok_or(Refused::Absent),
        // The caller has all rights, except for those that the object `/denied` names in namespaces where
        // the fabric has not bound its role; it may also have an error for all of them.
        Method::POST if path.ends_with("/selfsubjectaccessreviews") => {
            let mut review = sent();
            let asked = &review["spec"]["resourceAttributes"];
            let namespace = asked["namespace"].as_str().unwrap_or_default();
            let binding = format!(
                "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/liqo-csi-fabric"
            );
            let denied = store.get("/denied").unwrap_or_default();
            let is_denied = denied["resources"]
                .as_array()
                .is_some_and(|all| all.contains(&asked["resource"]));
            review["status"] = json!({
                "allowed": !is_denied || store.get(&binding).is_some(),
                "evaluationError": denied["evaluationError"],
            });
            return (StatusCode::CREATED, Json(review)).into_response();
        }
        Method::POST if path.ends_with("/selfsubjectreviews") => {
            let mut review = sent();
            let user = json!({"username": "system:serviceaccount:access:liqo-csi-remote"});
            review["status"] = json!({ "userInfo": user });
            return (StatusCode::CREATED, Json(review)).into_response();
        }
        // Members of that group have all rights. The last review is stored.
        Method::POST if path.ends_with("/subjectaccessreviews") => {
            let mut review = sent();
            store.put(&format!("{path}/last"), review.clone());
            let groups = review["spec"]["groups"].as_array();
            let is_master = groups.is_some_and(|all| all.contains(&json!("system:masters")));
            review["status"] = json!({"allowed": is_master});
            return (StatusCode::CREATED, Json(review)).into_response();
        }
        // The token names its user: `token-of:` and a group.
        Method::POST if path.ends_with("/tokenreviews") => {
            let mut review = sent();
            let token = review["spec"]["token"].as_str().unwrap_or_default();
            review["status"] = match token.strip_prefix("token-of:") {
                Some(group) => {
                    json!({"authenticated": true, "user": {"username": "somebody", "groups": [group]}})
                }
                None => json!({"authenticated": false}),
            };
            return (StatusCode::CREATED, Json(review)).into_response();
        }
        // The token names its account, its expiry, and the object to which it is bound.
        Method::POST if path.ends_with("/token") => return token(store, path, sent()),
        Method::POST if path.ends_with("/eviction") => {
            let dry = query.contains_key("dryRun");
            store.evict(path.trim_end_matches("/eviction"), dry)
        }
        Method::POST => {
            let sent = sent();
            let name = sent["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if query.get("dryRun").is_some() {
                return (StatusCode::CREATED, Json(sent)).into_response();
            }
            store.create(&format!("{path}/{name}"), sent)
        }
        Method::PATCH if query.contains_key("dryRun") => store.get(path).ok_or(Refused::Absent),
        // Applying creates the object if it does not exist.
        Method::PATCH if lists == Lists::Applied && store.get(path).is_none() => store.create(path, sent()),
        Method::PATCH => store.merge(object, &received(path, sent()), lists),
        Method::DELETE => store.delete(path, &sent()["preconditions"]),
        _ => return refusal(405, "not here"),
    };
    match outcome {
        Ok(object) if *method == Method::POST => (StatusCode::CREATED, Json(object)).into_response(),
        Ok(object) => Json(object).into_response(),
        Err(Refused::Absent) => {
            let mut said = status(404, "NotFound", "not found");
            let mut parts = object.rsplit('/');
            let (name, kind) = (parts.next(), parts.next());
            said["details"] = json!({"name": name, "kind": kind});
            (StatusCode::NOT_FOUND, Json(said)).into_response()
        }
        Err(Refused::Exists) => refusal(409, "AlreadyExists"),
        Err(Refused::Conflict(_)) => refusal(409, "Conflict"),
        Err(Refused::LateFinalizer) => {
            let why = "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted";
            (
                StatusCode::UNPROCESSABLE_ENTITY,
                Json(status(422, "Invalid", why)),
            )
                .into_response()
        }
        Err(Refused::Another) => {
            let mut said = status(422, "Invalid", "metadata.uid: Invalid value: field is immutable");
            said["details"] = json!({"causes": [{"field": "metadata.uid", "message": "", "reason": ""}]});
            (StatusCode::UNPROCESSABLE_ENTITY, Json(said)).into_response()
        }
    }
}

/// The part of a change that an API server uses. In changes of the status of a custom resource it ignores the metadata,
/// also the uid, except for the version (apiextensions-apiserver, `statusStrategy.PrepareForUpdate`).
fn received(path: &str, mut change: Value) -> Value {
    let group = path.strip_prefix("/apis/").and_then(|it| it.split('/').next());
    let is_custom = group.is_some_and(|it| CUSTOM_GROUPS.iter().any(|custom| it.ends_with(custom)));
    if is_custom
        && path.ends_with("/status")
        && let Some(metadata) = change.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.retain(|key, _| key == "resourceVersion");
    }
    change
}

/// A token of an existing service account, bound to an existing Secret if the request has one.
fn token(store: &Store, path: &str, mut request: Value) -> Response {
    let parts: Vec<&str> = path.split('/').collect();
    let (namespace, account) = (parts[4], parts[6]);
    let bound = request["spec"]["boundObjectRef"]["name"].as_str();
    let secret = bound.map(|name| format!("/api/v1/namespaces/{namespace}/secrets/{name}"));
    let is_there = |path: &str| store.get(path).is_some();
    if !is_there(path.trim_end_matches("/token")) || secret.is_some_and(|it| !is_there(&it)) {
        return refusal(404, "NotFound");
    }
    let now = jiff::Timestamp::now();
    let seconds = request["spec"]["expirationSeconds"].as_i64().unwrap_or(3600);
    let expires = jiff::Timestamp::from_second(now.as_second() + seconds).unwrap();
    let payload = json!({
        "sub": format!("system:serviceaccount:{namespace}:{account}"),
        "iat": now.as_second(), "exp": expires.as_second(), "jti": uuid::Uuid::new_v4().to_string(),
        "kubernetes.io": {"secret": {"name": bound}},
    });
    request["status"] = json!({
        "token": liqo_csi_model::access::token_saying(&payload),
        "expirationTimestamp": expires.strftime("%FT%TZ").to_string(),
    });
    (StatusCode::CREATED, Json(request)).into_response()
}

/// `/api/v1/x`, `/apis/g/v1/x`, or the same below a namespace.
fn is_collection(path: &str) -> bool {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    let group = if parts[0] == "api" { 2 } else { 3 };
    // `/version` and the like.
    let Some(below_group) = parts.get(group..) else {
        return false;
    };
    match below_group {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => rest.len() == 1,
        rest => rest.len() == 1,
    }
}

/// `/apis/g/v1`.
fn is_api(path: &str) -> bool {
    path.starts_with("/apis/") && path.split('/').count() == 4
}

fn list(store: &Store, path: &str, query: &Parameters) -> Value {
    let version = store.version();
    let items: Vec<_> = store
        .collection(path)
        .into_iter()
        .filter(|it| wanted(it, query))
        .collect();
    let start: usize = query
        .get("continue")
        .and_then(|token| token.parse().ok())
        .unwrap_or(0);
    let limit = query
        .get("limit")
        .and_then(|limit| limit.parse().ok())
        .unwrap_or(usize::MAX);
    let page: Vec<_> = items.iter().skip(start).take(limit).collect();
    let more = start + page.len() < items.len();
    let next = if more {
        (start + page.len()).to_string()
    } else {
        String::new()
    };
    json!({
        "kind": "List",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": version.to_string(), "continue": next},
        "items": page,
    })
}

fn follow(server: Arc<Server>, path: String, query: Parameters) -> Response {
    let since = query
        .get("resourceVersion")
        .and_then(|version| version.parse().ok())
        .unwrap_or(0);
    let (changes, cuts) = (server.store.changes(), server.store.cuts());
    let lines = stream::unfold((since, changes, cuts), move |(since, mut changes, mut cuts)| {
        let (server, path, query) = (Arc::clone(&server), path.clone(), query.clone());
        async move {
            loop {
                let news = server.store.since(since, &path);
                if let Some(last) = news.last().map(|it| it.version) {
                    let lines: String = news.iter().filter_map(|it| line(it, &query)).collect();
                    return Some((Ok::<_, Infallible>(lines), (last, changes, cuts)));
                }
                tokio::select! {
                    news = changes.changed() => news.ok()?,
                    _ = cuts.changed() => return None,
                }
            }
        }
    });
    Body::from_stream(lines).into_response()
}

/// An object that no longer matches the selector has left the watch.
fn line(change: &LoggedChange, query: &Parameters) -> Option<String> {
    let kind = match (wanted(&change.object, query), change.kind) {
        (true, kind) => kind,
        (false, "MODIFIED") => "DELETED",
        (false, _) => return None,
    };
    // As in API servers, the body is read as it arrives.
    Some(format!("{{\"type\":\"{kind}\",\"object\":{}}}\n", change.object))
}

fn wanted(object: &Value, query: &Parameters) -> bool {
    let terms = |key: &str| {
        query
            .get(key)
            .map(|text| text.split(',').map(str::to_owned).collect::<Vec<_>>())
    };
    let labels = terms("labelSelector").unwrap_or_default();
    let fields = terms("fieldSelector").unwrap_or_default();
    labels
        .iter()
        .all(|term| holds(term, |key| object["metadata"]["labels"][key].as_str()))
        && fields.iter().all(|term| {
            holds(term, |key| {
                let field = key.split('.').fold(object, |value, key| &value[key]);
                // To Kubernetes a field that is absent is empty.
                Some(field.as_str().unwrap_or_default())
            })
        })
}

fn holds<'a>(term: &str, value: impl Fn(&str) -> Option<&'a str>) -> bool {
    if let Some((key, unwanted)) = term.split_once("!=") {
        return value(key) != Some(unwanted);
    }
    match term.split_once('=') {
        Some((key, wanted)) => value(key) == Some(wanted),
        None => value(term).is_some(),
    }
}

fn refusal(code: u16, reason: &str) -> Response {
    let code = StatusCode::from_u16(code).unwrap();
    (code, Json(status(code.as_u16(), reason, reason))).into_response()
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

/// axum's own extractor requires a feature that is not needed otherwise.
struct Json(Value);

impl IntoResponse for Json {
    fn into_response(self) -> Response {
        ([("content-type", "application/json")], self.0.to_string()).into_response()
    }
}
