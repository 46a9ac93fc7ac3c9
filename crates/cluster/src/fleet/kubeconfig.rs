//! Vets kubeconfigs from objects in a cluster: returns a kubeconfig that is safe to connect with, or an
//! error that says what to change.
//!
//! An author of such an object must not be able to make the driver run commands, read local files, use
//! another identity, or connect to addresses that only the driver can reach. The result is built only from
//! the fields that are checked here. This code does not connect: a name that resolves to a forbidden address
//! is detected only when connecting.

mod address;
mod refused;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use kube::config::{AuthInfo, Cluster, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};
use secrecy::{ExposeSecret, SecretString};
use serde_saphyr::options::MergeKeyPolicy;

pub use self::{
    address::{AddressRefused, of_server},
    refused::{Field, KubeconfigRefused},
};

/// The maximum size of a Secret.
const LONGEST: usize = 1 << 20;

/// What a kubeconfig may contain in addition, depending on its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Whether it may name a proxy.
    pub proxy: bool,
}

/// Reads a kubeconfig, and refuses what would let its author act through the driver. Only the current
/// context with its cluster and user is checked and kept; a single context needs no `current-context`.
pub fn vet(text: &[u8], allowed: Allowed) -> Result<Kubeconfig, KubeconfigRefused> {
    let file = read(text)?;
    names_are_unique(&file)?;

    let context = current_context(&file)?;
    let name = &context.name;
    let at = Field::of("contexts", name);
    all_is_known(&at, &context.other)?;
    let context = context
        .context
        .as_ref()
        .ok_or_else(|| KubeconfigRefused::Absent(at.clone()))?;
    let context = vet_context(&at.child("context"), context)?;

    let cluster = vet_cluster(&file, &context.cluster, allowed)?;
    let user = match &context.user {
        Some(user) => vet_user(&file, user)?,
        None => return Err(KubeconfigRefused::NoCredential(at.child("context.user"))),
    };
    Ok(Kubeconfig {
        current_context: Some(name.clone()),
        clusters: vec![cluster],
        auth_infos: vec![user],
        contexts: vec![NamedContext {
            name: name.clone(),
            context: Some(context),
            other: BTreeMap::new(),
        }],
        ..Kubeconfig::default()
    })
}

/// The token of the user in a vetted kubeconfig.
#[must_use]
pub fn token(vetted: &Kubeconfig) -> Option<&SecretString> {
    vetted.auth_infos.first()?.auth_info.as_ref()?.token.as_ref()
}

/// The same kubeconfig with another token.
#[must_use]
pub fn with_token(mut vetted: Kubeconfig, token: &SecretString) -> Kubeconfig {
    for user in &mut vetted.auth_infos {
        if let Some(user) = &mut user.auth_info {
            user.token = Some(token.clone());
        }
    }
    vetted
}

/// Unlike kube's own reader, this accepts exactly one document; kube would merge several.
fn read(text: &[u8]) -> Result<Kubeconfig, KubeconfigRefused> {
    if text.len() > LONGEST {
        return Err(KubeconfigRefused::TooLarge);
    }
    let text = std::str::from_utf8(text).map_err(|_| KubeconfigRefused::NotText)?;
    let options = serde_saphyr::options! { merge_keys: MergeKeyPolicy::Error, with_snippet: false };
    // The original error quotes values, which may be secrets.
    serde_saphyr::from_str_with_options(text, options).map_err(|error| KubeconfigRefused::NotYaml {
        line: error.location().map_or(0, |it| it.line()),
    })
}

fn names_are_unique(file: &Kubeconfig) -> Result<(), KubeconfigRefused> {
    no_name_twice("contexts", file.contexts.iter().map(|it| it.name.as_str()))?;
    no_name_twice("clusters", file.clusters.iter().map(|it| it.name.as_str()))?;
    no_name_twice("users", file.auth_infos.iter().map(|it| it.name.as_str()))
}

fn no_name_twice<'a>(
    list: &'static str,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), KubeconfigRefused> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(KubeconfigRefused::Twice(Field::of(list, name)));
        }
    }
    Ok(())
}

fn current_context(file: &Kubeconfig) -> Result<&NamedContext, KubeconfigRefused> {
    match (given(file.current_context.as_ref()), file.contexts.as_slice()) {
        (Some(name), contexts) => contexts
            .iter()
            .find(|it| it.name == *name)
            .ok_or_else(|| KubeconfigRefused::Absent(Field::of("contexts", name))),
        (None, [only]) => Ok(only),
        (None, _) => Err(KubeconfigRefused::NoContext),
    }
}

// The functions below destructure the types of kube without `..`: a new field does not compile until it is
// checked here.

fn vet_context(at: &Field, context: &Context) -> Result<Context, KubeconfigRefused> {
    let Context {
        cluster,
        user,
        namespace,
        extensions: _,
        other,
    } = context;
    all_is_known(at, other)?;
    Ok(Context {
        cluster: cluster.clone(),
        user: given(user.as_ref()).cloned(),
        namespace: given(namespace.as_ref()).cloned(),
        extensions: None,
        other: BTreeMap::new(),
    })
}

fn vet_cluster(file: &Kubeconfig, name: &str, allowed: Allowed) -> Result<NamedCluster, KubeconfigRefused> {
    let at = Field::of("clusters", name);
    let NamedCluster {
        name,
        cluster: Some(cluster),
        other,
    } = file
        .clusters
        .iter()
        .find(|it| it.name == name)
        .ok_or_else(|| KubeconfigRefused::Absent(at.clone()))?
    else {
        return Err(KubeconfigRefused::Absent(at));
    };
    all_is_known(&at, other)?;
    let at = at.child("cluster");

    let Cluster {
        server,
        insecure_skip_tls_verify,
        certificate_authority,
        certificate_authority_data,
        proxy_url,
        disable_compression,
        tls_server_name,
        extensions: _,
        other,
    } = cluster;
    all_is_known(&at, other)?;
    no_file(&at, "certificate-authority", certificate_authority.as_ref())?;
    if *insecure_skip_tls_verify == Some(true) {
        return Err(KubeconfigRefused::InsecureTls(
            at.child("insecure-skip-tls-verify"),
        ));
    }
    address::of_server(server.as_deref().unwrap_or_default()).map_err(|why| KubeconfigRefused::Address {
        field: at.child("server"),
        why,
    })?;
    let proxy_url = given(proxy_url.as_ref());
    if let Some(proxy) = proxy_url {
        let field = at.child("proxy-url");
        if !allowed.proxy {
            return Err(KubeconfigRefused::Proxy(field));
        }
        address::of_proxy(proxy).map_err(|why| KubeconfigRefused::Address { field, why })?;
    }

    let kept = Cluster {
        server: server.clone(),
        certificate_authority_data: given(certificate_authority_data.as_ref()).cloned(),
        proxy_url: proxy_url.cloned(),
        disable_compression: *disable_compression,
        tls_server_name: given(tls_server_name.as_ref()).cloned(),
        ..Cluster::default()
    };
    Ok(NamedCluster {
        name: name.clone(),
        cluster: Some(kept),
        other: BTreeMap::new(),
    })
}

fn vet_user(file: &Kubeconfig, name: &str) -> Result<NamedAuthInfo, KubeconfigRefused> {
    let at = Field::of("users", name);
    let NamedAuthInfo {
        name,
        auth_info: Some(user),
        other,
    } = file
        .auth_infos
        .iter()
        .find(|it| it.name == name)
        .ok_or_else(|| KubeconfigRefused::Absent(at.clone()))?
    else {
        return Err(KubeconfigRefused::Absent(at));
    };
    all_is_known(&at, other)?;
    let at = at.child("user");

    let AuthInfo {
        username,
        password,
        token,
        token_file,
        client_certificate,
        client_certificate_data,
        client_key,
        client_key_data,
        impersonate,
        impersonate_uid,
        impersonate_groups,
        impersonate_user_extra,
        extensions: _,
        auth_provider,
        exec,
        other,
    } = user;
    all_is_known(&at, other)?;
    if exec.is_some() {
        return Err(KubeconfigRefused::Exec(at.child("exec")));
    }
    if auth_provider.is_some() {
        return Err(KubeconfigRefused::AuthProvider(at.child("auth-provider")));
    }
    no_file(&at, "tokenFile", token_file.as_ref())?;
    no_file(&at, "client-certificate", client_certificate.as_ref())?;
    no_file(&at, "client-key", client_key.as_ref())?;
    for (field, is_set) in [
        ("as", given(impersonate.as_ref()).is_some()),
        ("as-uid", given(impersonate_uid.as_ref()).is_some()),
        (
            "as-groups",
            impersonate_groups.as_ref().is_some_and(|it| !it.is_empty()),
        ),
        (
            "as-user-extra",
            impersonate_user_extra.as_ref().is_some_and(|it| !it.is_empty()),
        ),
    ] {
        if is_set {
            return Err(KubeconfigRefused::Impersonation(at.child(field)));
        }
    }
    for (field, is_set) in [
        ("username", given(username.as_ref()).is_some()),
        ("password", given_secret(password.as_ref()).is_some()),
    ] {
        if is_set {
            return Err(KubeconfigRefused::Password(at.child(field)));
        }
    }

    let certificate = given(client_certificate_data.as_ref());
    let key = given_secret(client_key_data.as_ref());
    let token = given_secret(token.as_ref());
    match (certificate, key, token) {
        (None, None, None) => return Err(KubeconfigRefused::NoCredential(at)),
        (Some(_), None, _) => return Err(KubeconfigRefused::HalfPair(at.child("client-key-data"))),
        (None, Some(_), _) => return Err(KubeconfigRefused::HalfPair(at.child("client-certificate-data"))),
        _ => {}
    }
    let kept = AuthInfo {
        token: token.cloned(),
        client_certificate_data: certificate.cloned(),
        client_key_data: key.cloned(),
        ..AuthInfo::default()
    };
    Ok(NamedAuthInfo {
        name: name.clone(),
        auth_info: Some(kept),
        other: BTreeMap::new(),
    })
}

fn no_file(at: &Field, field: &'static str, path: Option<&String>) -> Result<(), KubeconfigRefused> {
    match given(path) {
        Some(_) => Err(KubeconfigRefused::file(at.child(field), field)),
        None => Ok(()),
    }
}

fn all_is_known<V>(at: &Field, unknown: &BTreeMap<String, V>) -> Result<(), KubeconfigRefused> {
    match unknown.keys().next() {
        Some(field) => Err(KubeconfigRefused::unknown(at.clone(), field)),
        None => Ok(()),
    }
}

/// As for kubectl, an empty text counts as missing.
fn given(text: Option<&String>) -> Option<&String> {
    text.filter(|it| !it.is_empty())
}

fn given_secret(text: Option<&SecretString>) -> Option<&SecretString> {
    text.filter(|it| !it.expose_secret().is_empty())
}
