//! Checks addresses: not the loopback address, not the local link of the node, and none that the resolver
//! interprets differently from this code.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::Uri;

/// Names of the loopback address in the hosts files of common distributions.
const NAMES_OF_LOOPBACK: [&str; 6] = [
    "localhost",
    "localhost4",
    "localhost6",
    "ip6-localhost",
    "ip6-loopback",
    "loopback",
];
const DOMAINS_OF_LOOPBACK: [&str; 2] = [".localhost", ".localdomain"];

/// Why an address is refused. The message does not contain the address, which may hold a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefused {
    /// No address, or no host in it.
    #[error("has no host; write scheme://host:port")]
    NoHost,
    /// Different parsers may read it differently.
    #[error("is not a plain URL; write scheme://host:port with a DNS name or a full IP address")]
    NotPlain,
    #[error("is not https; the connection must be encrypted")]
    NotHttps,
    #[error("is not a supported proxy; write http://, https:// or socks5://")]
    Scheme,
    #[error("contains credentials, which would be logged; use an address without them")]
    Credentials,
    #[error(
        "is an address of the local machine; write an address at which this cluster reaches the other one"
    )]
    Loopback,
    /// An address on the local link, such as that of a metadata service.
    #[error("is a link-local address; write a routable address")]
    LinkLocal,
    #[error("is an unspecified address; write the address of the server")]
    Unspecified,
}

/// Checks the address of an API server.
pub fn of_server(address: &str) -> Result<(), AddressRefused> {
    let uri = parse(address)?;
    if uri.scheme_str() != Some("https") {
        return Err(AddressRefused::NotHttps);
    }
    vet(&uri)
}

/// Checks the address of a proxy; the schemes are those that kube accepts.
pub(super) fn of_proxy(address: &str) -> Result<(), AddressRefused> {
    let uri = parse(address)?;
    if !matches!(uri.scheme_str(), Some("http" | "https" | "socks5")) {
        return Err(AddressRefused::Scheme);
    }
    vet(&uri)
}

/// The parser that kube uses, so that both see the same host.
fn parse(address: &str) -> Result<Uri, AddressRefused> {
    if address.is_empty() {
        return Err(AddressRefused::NoHost);
    }
    address.parse().map_err(|_| AddressRefused::NotPlain)
}

fn vet(uri: &Uri) -> Result<(), AddressRefused> {
    let authority = uri.authority().ok_or(AddressRefused::NoHost)?;
    if authority.as_str().contains('@') {
        return Err(AddressRefused::Credentials);
    }
    let host = authority.host();
    let whole = match authority.port_u16() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    if authority.as_str() != whole || uri.query().is_some() {
        return Err(AddressRefused::NotPlain);
    }
    if let Some(address) = host.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
        return of_ip(address.parse().map_err(|_| AddressRefused::NotPlain)?);
    }
    of_name(host.trim_end_matches('.'))
}

fn of_name(host: &str) -> Result<(), AddressRefused> {
    if host.is_empty() {
        return Err(AddressRefused::NoHost);
    }
    if let Ok(address) = host.parse() {
        return of_ip(IpAddr::V4(address));
    }
    let is_plain = host
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if !is_plain || ends_in_a_number(host) {
        return Err(AddressRefused::NotPlain);
    }
    let host = host.to_ascii_lowercase();
    let is_ours = NAMES_OF_LOOPBACK.contains(&host.as_str())
        || DOMAINS_OF_LOOPBACK.iter().any(|domain| host.ends_with(domain));
    if is_ours {
        return Err(AddressRefused::Loopback);
    }
    Ok(())
}

/// The resolver reads `127.1`, `0x7f000001` and `2130706433` as 127.0.0.1.
fn ends_in_a_number(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    last.chars().all(|c| c.is_ascii_digit()) || last.starts_with("0x") || last.starts_with("0X")
}

fn of_ip(address: IpAddr) -> Result<(), AddressRefused> {
    let address = match address {
        IpAddr::V6(six) => embedded(six).map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    let is_link_local = match address {
        IpAddr::V4(four) => four.is_link_local(),
        IpAddr::V6(six) => six.is_unicast_link_local(),
    };
    // Linux treats all of 0.0.0.0/8 as "this host".
    let is_unspecified = match address {
        IpAddr::V4(four) => four.octets()[0] == 0,
        IpAddr::V6(six) => six.is_unspecified(),
    };
    match address {
        _ if address.is_loopback() => Err(AddressRefused::Loopback),
        _ if is_link_local => Err(AddressRefused::LinkLocal),
        _ if is_unspecified => Err(AddressRefused::Unspecified),
        _ => Ok(()),
    }
}

/// The IPv4 address in an IPv6 address: mapped, compatible, NAT64.
fn embedded(six: Ipv6Addr) -> Option<Ipv4Addr> {
    let [network @ .., high, low] = six.segments();
    let stands_for = match network {
        [0, 0, 0, 0, 0, 0xffff] | [0x64, 0xff9b, 0, 0, 0, 0] => true,
        [0, 0, 0, 0, 0, 0] => high != 0,
        _ => false,
    };
    stands_for.then(|| Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
}
