//! Why a kubeconfig is refused, and what to do. No variant contains a value of the file: only names of
//! entries and fields.

use std::fmt;

use super::AddressRefused;

/// Longer names are cut in messages; ARNs of clusters fit.
const LONGEST_NAME: usize = 128;

/// All known fields of the checked parts of a kubeconfig.
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KubeconfigRefused {
    #[error("more than 1 MiB of text: keep only the cluster and the user it is for")]
    TooLarge,
    #[error("not UTF-8 text: encode the file in base64 only once, in the `data` of the Secret")]
    NotText,
    /// Not a kubeconfig. The line is 0 if it is unknown.
    #[error("not a kubeconfig (one YAML document without repeated or merged keys){}", at_line(*.line))]
    NotYaml {
        /// The line of the error.
        line: u64,
    },
    #[error("{0} exists twice: remove one of the two")]
    Twice(Field),
    /// The context is ambiguous.
    #[error("current-context: not set, and there is not exactly one context; set it")]
    NoContext,
    /// An entry that another one refers to is missing or empty.
    #[error("{0}: referred to, but missing; add it or correct the reference")]
    Absent(Field),
    /// A field that Kubernetes does not know, or knows spelled differently.
    #[error("{within}: has a field that kubeconfigs do not have{}; correct or remove it", meant(*.near))]
    Unknown {
        /// The parent of the field.
        within: Field,
        /// A known field with a similar name.
        near: Option<&'static str>,
    },
    #[error("{0}: commands are never run; use a client certificate or a token")]
    Exec(Field),
    #[error("{0}: authentication plugins are never used; use a client certificate or a token")]
    AuthProvider(Field),
    #[error("{field}: files are never read; put the content into `{instead}`")]
    File {
        field: Field,
        /// The field for the content.
        instead: &'static str,
    },
    /// TLS verification is disabled.
    #[error(
        "{0}: the certificate of the server must be verified; set `certificate-authority-data` and, if needed, `tls-server-name`"
    )]
    InsecureTls(Field),
    #[error("{0}: impersonation is refused; use the credentials of the identity itself")]
    Impersonation(Field),
    #[error("{0}: no API server takes passwords since Kubernetes 1.19; use a client certificate or a token")]
    Password(Field),
    #[error("{0}: there are no credentials; set `token`, or `client-certificate-data` and `client-key-data`")]
    NoCredential(Field),
    /// A certificate without key, or the reverse.
    #[error("{0}: missing; a client certificate and its key belong together")]
    HalfPair(Field),
    #[error("{0}: proxies are not allowed here; remove it, or allow them where the driver is deployed")]
    Proxy(Field),
    /// An address that the driver must not connect to.
    #[error("{field}: {why}")]
    Address { field: Field, why: AddressRefused },
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

    /// A typing error such as `{token:secret}` makes a secret a field name: only names from the list of
    /// known fields are repeated.
    pub(super) fn unknown(within: Field, name: &str) -> Self {
        let near = KNOWN_FIELDS
            .into_iter()
            .find(|known| plain(known).eq(plain(name)));
        Self::Unknown { within, near }
    }
}

/// The letters of a name, without hyphens and case.
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

/// A path in a kubeconfig: `users[admin].user.exec`. Names, never values.
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
