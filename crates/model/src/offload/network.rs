//! Routed pod networks: which addresses of remote pods are accepted, and which pods are reachable from which
//! cluster. Creating the routes is the administrator's task.

use std::{collections::BTreeMap, fmt, net::IpAddr};

use ipnet::IpNet;
use serde_json::Value;

/// Addresses per pod: one of each family.
const MOST: usize = 2;
/// Addresses quoted in an error.
const QUOTED: usize = 4;
/// The longest text of an address.
const LONGEST: usize = 45;

/// The pod addresses of a cluster, as declared by its administrator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodNetwork {
    ranges: Vec<IpNet>,
    unread: Vec<String>,
}

/// A pod reports addresses outside of the pod network of its cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join(", "))]
pub struct NotRouted(Vec<String>);

/// The remote cluster of each virtual node, and whether it is routed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes(BTreeMap<String, Represented>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Represented {
    cluster: String,
    routed: bool,
}

/// Whether one of these ranges has the address.
#[must_use]
pub fn is_in_ranges(ip: IpAddr, ranges: &[String]) -> bool {
    let mut ranges = ranges.iter().filter_map(|it| it.parse::<IpNet>().ok());
    ranges.any(|range| range.contains(&ip))
}

impl FromIterator<(String, String, bool)> for Routes {
    /// From nodes, the clusters that they represent, and whether these are routed.
    fn from_iter<I: IntoIterator<Item = (String, String, bool)>>(all: I) -> Self {
        let all = all.into_iter();
        Self(
            all.map(|(node, cluster, routed)| (node, Represented { cluster, routed }))
                .collect(),
        )
    }
}

impl Routes {
    /// Whether a routed cluster gets the endpoints on this node of ours. It finds the pods that run in it by
    /// itself.
    #[must_use]
    pub fn lead(&self, cluster: &str, node: Option<&str>) -> bool {
        match node.and_then(|node| self.0.get(node)) {
            Some(it) => it.routed && it.cluster != cluster,
            None => true,
        }
    }
}

impl PodNetwork {
    /// Parses CIDRs of IPv4 and IPv6. Invalid ones are ignored: see [`Self::unread`].
    #[must_use]
    pub fn read(cidrs: &[String]) -> Self {
        let mut network = Self::default();
        for text in cidrs {
            match text.parse::<IpNet>() {
                Ok(range) => network.ranges.push(range.trunc()),
                Err(_) => network.unread.push(text.clone()),
            }
        }
        network
    }

    /// The texts that are not CIDRs.
    #[must_use]
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// Whether the address belongs to this pod network.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(&address))
    }

    /// A range of this network that overlaps one of the other, with that one.
    #[must_use]
    pub fn overlap(&self, other: &Self) -> Option<(IpNet, IpNet)> {
        let pairs = self
            .ranges
            .iter()
            .flat_map(|a| other.ranges.iter().map(move |b| (a, b)));
        let mut common = pairs.filter(|(a, b)| a.contains(&b.network()) || b.contains(&a.network()));
        common.next().map(|(a, b)| (*a, *b))
    }

    /// The addresses of a remote pod in the order of its status.
    ///
    /// # Errors
    /// One of them is outside of this pod network. Then none is accepted: the owner of the remote cluster
    /// must not decide where Services of the home cluster lead.
    pub fn addresses(&self, status: &Value) -> Result<Vec<IpAddr>, NotRouted> {
        let said = said(status);
        let refused = || {
            let quoted = said.iter().take(QUOTED);
            let quoted = quoted.map(|it| it.chars().filter(char::is_ascii_graphic).take(LONGEST).collect());
            NotRouted(quoted.collect())
        };
        let read = |text: &&str| text.parse().ok().filter(|address| self.has(*address));
        let all: Option<Vec<IpAddr>> = said.iter().map(read).collect();
        let all = all.ok_or_else(refused)?;
        let is_one_each = all.len() < MOST || (all.len() == MOST && all[0].is_ipv4() != all[1].is_ipv4());
        if is_one_each { Ok(all) } else { Err(refused()) }
    }
}

impl fmt::Display for PodNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.ranges.iter().map(ToString::to_string).collect();
        f.write_str(&ranges.join(", "))
    }
}

/// API servers fill in both fields; the list is more complete.
fn said(status: &Value) -> Vec<&str> {
    let list = status["podIPs"].as_array().into_iter().flatten();
    let list: Vec<&str> = list.map(|it| it["ip"].as_str().unwrap_or_default()).collect();
    match status["podIP"].as_str() {
        Some(one) if list.is_empty() && !one.is_empty() => vec![one],
        Some(one) if !one.is_empty() && !list.contains(&one) => [&[one], &*list].concat(),
        _ => list,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn network(cidrs: &[&str]) -> PodNetwork {
        let cidrs: Vec<String> = cidrs.iter().map(|&it| it.to_owned()).collect();
        PodNetwork::read(&cidrs)
    }

    fn status(addresses: &[&str]) -> Value {
        let list: Vec<Value> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
        json!({"podIP": addresses.first(), "podIPs": list})
    }

    #[test]
    fn only_addresses_in_the_remote_pod_networks_are_accepted() {
        let milan = network(&["10.64.0.0/16", "fd00:64::/48"]);
        for (addresses, expected) in [
            (vec![], true),
            (vec!["10.64.3.7"], true),
            (vec!["10.64.3.7", "fd00:64::7"], true),
            (vec!["fd00:64::7", "10.64.3.7"], true),
            // A node, a pod or the API server of home.
            (vec!["10.65.0.1"], false),
            (vec!["10.64.3.7", "fd00:65::7"], false),
            (vec!["fd00:65::7"], false),
            (vec!["10.64.3.7", "10.64.3.8"], false),
            (vec!["10.64.3.7", "fd00:64::7", "fd00:64::8"], false),
            (vec!["::ffff:10.64.3.7"], false),
            (vec!["10.64.3.7/32"], false),
            (vec![""], false),
            (vec!["a.test"], false),
        ] {
            let found = milan.addresses(&status(&addresses));
            assert_eq!(found.is_ok(), expected, "{addresses:?}");
            let text = |all: Vec<IpAddr>| all.iter().map(ToString::to_string).collect::<Vec<_>>();
            if let Ok(found) = found {
                assert_eq!(text(found), addresses);
            }
        }
        assert_eq!(milan.addresses(&json!({})), Ok(vec![]));
        let alone = json!({"podIP": "10.64.3.7"});
        assert_eq!(milan.addresses(&alone).unwrap().len(), 1);
        let two_stories = json!({"podIP": "192.0.2.1", "podIPs": [{"ip": "10.64.3.7"}]});
        assert!(milan.addresses(&two_stories).is_err());
        let long = json!({"podIP": "x\n".repeat(1000)});
        assert!(milan.addresses(&long).unwrap_err().to_string().len() <= LONGEST);
    }

    #[test]
    fn malformed_cidrs_are_listed_and_contain_no_address() {
        let wrong = network(&["10.0.0.0/33", "::/129", "10.0.0.0", "x"]);
        assert_eq!(wrong.unread().len(), 4);
        assert!(!wrong.has("10.0.0.1".parse().unwrap()));
        assert!(network(&["10.64.7.9/16"]).has("10.64.0.1".parse().unwrap()));
    }

    #[test]
    fn overlapping_ranges_are_found() {
        let milan = network(&["10.64.0.0/16", "fd00::/8"]);
        assert_eq!(milan.overlap(&network(&["10.65.0.0/16", "fe00::/8"])), None);
        for other in ["10.64.128.0/20", "10.0.0.0/8", "10.64.0.0/16", "fd00:1::/64"] {
            assert!(milan.overlap(&network(&[other])).is_some(), "{other}");
        }
    }

    fn address() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            any::<u32>().prop_map(|it| Ipv4Addr::from(it).into()),
            any::<u128>().prop_map(|it| Ipv6Addr::from(it).into()),
        ]
    }

    /// The first bits, one by one.
    fn begins_alike(a: IpAddr, b: IpAddr, length: u8) -> bool {
        let bits = |address: IpAddr| -> Vec<bool> {
            let bytes = match address {
                IpAddr::V4(it) => it.octets().to_vec(),
                IpAddr::V6(it) => it.octets().to_vec(),
            };
            let of = |byte: u8| (0..8).rev().map(move |at| byte >> at & 1 == 1);
            bytes.into_iter().flat_map(of).take(length.into()).collect()
        };
        a.is_ipv4() == b.is_ipv4() && bits(a) == bits(b)
    }

    proptest! {
        #[test]
        fn a_network_contains_the_addresses_with_its_prefix(
            base in address(), other in address(), length in 0..=128_u8, flipped in 0..128_u32,
        ) {
            let length = if base.is_ipv4() { length % 33 } else { length };
            let network = network(&[&format!("{base}/{length}")]);
            let near = match base {
                IpAddr::V4(it) => IpAddr::from(Ipv4Addr::from(u32::from(it) ^ (1 << (flipped % 32)))),
                IpAddr::V6(it) => IpAddr::from(Ipv6Addr::from(u128::from(it) ^ (1 << flipped))),
            };
            for address in [base, near, other] {
                prop_assert_eq!(network.has(address), begins_alike(base, address, length), "{}", address);
            }
        }
    }
}
