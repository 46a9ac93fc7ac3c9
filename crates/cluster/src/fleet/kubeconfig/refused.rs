//! Why a kubeconfig is refused, and what to do about it. Nothing in here ever
//! holds a value of the file: names of entries and names of fields at most.

use std::fmt;

use super::AddressRefused;

/// Longer names are cut in messages; ARNs of clusters fit.
const LONGEST_NAME: usize = 128;

/// Every field that kubeconfigs are known to have where we look.
const KNOWN_FIELDS: [&str; 27] = [
    "as",
    "as-groups",
    "as-uid",
    "as-user-extra",
    "auth-provider",
    "certificate-authority",
    "certificate-authority-data",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "cluster",
    "context",
    "disable-compression",
    "exec",
    "extensions",
    "insecure-skip-tls-verify",
    "name",
    "namespace",
    "password",
    "proxy-url",
    "server",
    "tls-server-name",
    "token",
    "tokenFile",
    "user",
    "username",
];

/// Why a kubeconfig is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigRefused {
    /// Too much text.
    #[error("more than 1 MiB of text: keep only the cluster and the user it is for")]
    TooLarge,
    /// Not text.
    #[error("not UTF-8 text: base64 belongs around the file once, in the `data` of the Secret")]
    NotText,
    /// Not what a kubeconfig looks like. The line is 0 when it is not known.
    #[error("not a kubeconfig (one YAML document without repeated or merged keys){}", at_line(*.line))]
    NotYaml {
        /// Where reading ended.
        line: u64,
    },
    /// Two entries of one name.
    #[error("{0} is there twice: remove the one that is not meant")]
    Twice(Field),
    /// Nobody says which context is meant.
    #[error("current-context: not set, and there is not exactly one context; set it")]
    NoContext,
    /// An entry that another one refers to is missing or empty.
    #[error("{0}: referred to, but not there; add it or correct the reference")]
    Absent(Field),
    /// A field that Kubernetes does not know, or knows spelled differently.
    #[error("{within}: has a field that kubeconfigs do not have{}; correct or remove it", meant(*.near))]
    Unknown {
        /// What has the field.
        within: Field,
        /// The known field it looks like.
        near: Option<&'static str>,
    },
    /// A command.
    #[error("{0}: commands are never run; use a client certificate or a token")]
    Exec(Field),
    /// A plugin.
    #[error("{0}: authentication plugins are never used; use a client certificate or a token")]
    AuthProvider(Field),
    /// A path.
    #[error("{field}: files are never read; put the content into `{instead}`")]
    File {
        /// The field with the path.
        field: Field,
        /// Where the content belongs.
        instead: &'static str,
    },
    /// The server could be anybody.
    #[error(
        "{0}: the server must prove who it is; set `certificate-authority-data` and, if needed, `tls-server-name`"
    )]
    InsecureTls(Field),
    /// Acting as somebody else.
    #[error("{0}: impersonation is refused; use the credentials of the identity itself")]
    Impersonation(Field),
    /// Basic authentication.
    #[error("{0}: no API server takes passwords since Kubernetes 1.19; use a client certificate or a token")]
    Password(Field),
    /// Nothing to authenticate with.
    #[error("{0}: there are no credentials; set `token`, or `client-certificate-data` and `client-key-data`")]
    NoCredential(Field),
    /// A certificate without key, or the other way round.
    #[error("{0}: missing; a client certificate and its key belong together")]
    HalfPair(Field),
    /// A proxy where none is allowed.
    #[error("{0}: proxies are not allowed here; remove it, or allow them where the driver is deployed")]
    Proxy(Field),
    /// An address that must not be reached through us.
    #[error("{field}: {why}")]
    Address {
        /// The field with the address.
        field: Field,
        /// What is wrong with it.
        why: AddressRefused,
    },
}

impl KubeconfigRefused {
    pub(super) fn file(field: Field, name: &str) -> Self {
        let instead = match name {
            "certificate-authority" => "certificate-authority-data",
            "client-certificate" => "client-certificate-data",
            "client-key" => "client-key-data",
            _ => "token",
        };
        Self::File { field, instead }
    }

    /// A slip like `{token:secret}` makes a field name of a secret: only names
    /// from our own list are repeated.
    pub(super) fn unknown(within: Field, name: &str) -> Self {
        let near = KNOWN_FIELDS
            .into_iter()
            .find(|known| plain(known).eq(plain(name)));
        Self::Unknown { within, near }
    }
}

/// The letters that are left when people disagree about hyphens and capitals.
fn plain(name: &str) -> impl Iterator<Item = char> {
    name.chars()
        .filter(|it| !matches!(it, '-' | '_' | ' '))
        .map(|it| it.to_ascii_lowercase())
}

fn at_line(line: u64) -> String {
    match line {
        0 => String::new(),
        line => format!(": see line {line}"),
    }
}

fn meant(near: Option<&str>) -> String {
    near.map(|it| format!(", it looks like `{it}`"))
        .unwrap_or_default()
}

/// A place in a kubeconfig: `users[admin].user.exec`. Names, never values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field(String);

impl Field {
    pub(super) fn of(list: &'static str, name: &str) -> Self {
        let shown: String = name
            .chars()
            .take(LONGEST_NAME)
            .map(|it| if it.is_control() { '?' } else { it })
            .collect();
        Self(format!("{list}[{shown}]"))
    }

    pub(super) fn child(&self, field: &'static str) -> Self {
        Self(format!("{}.{field}", self.0))
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
