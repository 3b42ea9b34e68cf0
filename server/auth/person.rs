//! Who asks for a change: the person that a trusted proxy names, or else what is known of the sender.
//!
//! A header is believed only of proxies that the configuration lists: anyone else could write any name
//! into it. And only where it has one value: a proxy that adds its own to what the sender wrote passes both on, and
//! the sender's comes first.

use std::net::IpAddr;

use gpufleet_analysis::incident::MAX_PERSON_BYTES;
use http::HeaderMap;

use super::{AuthConfig, Role};
use crate::words::text;

/// A proxy whose header is believed: an address, or those that begin with the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Proxy {
    network: IpAddr,
    bits: u32,
}

impl Proxy {
    /// Reads `10.1.2.3`, `10.0.0.0/8`, `fd00::/8`.
    fn parse(text: &str) -> Option<Self> {
        let (network, bits) = match text.split_once('/') {
            Some((network, bits)) => (network, Some(bits.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let network: IpAddr = network.parse().ok()?;
        let all = if network.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(all);
        (bits <= all).then_some(Self { network, bits })
    }

    fn holds(&self, peer: IpAddr) -> bool {
        let differ = match (self.network, peer.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                u128::from(ours.to_bits() ^ theirs.to_bits()) << 96
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => ours.to_bits() ^ theirs.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= self.bits
    }
}

/// Refuses a header that nobody, or that anybody, could be believed.
///
/// # Errors
/// Names the key.
pub fn check(config: &AuthConfig) -> Result<(), String> {
    for text in &config.trusted_proxies {
        if Proxy::parse(text).is_none() {
            return Err(format!(
                "auth.trusted_proxies: {text:?} is no address and no network such as 10.0.0.0/8"
            ));
        }
    }
    if config.user_header.is_empty() == config.trusted_proxies.is_empty() {
        return Ok(());
    }
    Err(
        "auth.user_header and auth.trusted_proxies do nothing without each other: set both or none"
            .to_owned(),
    )
}

/// The name under which a change is written down; at most [`MAX_PERSON_BYTES`], and nothing in it that is not seen.
pub fn name(config: &AuthConfig, headers: &HeaderMap, peer: Option<IpAddr>, role: Role) -> String {
    let is_trusted = |peer: IpAddr| {
        let proxies = config.trusted_proxies.iter();
        proxies
            .filter_map(|it| Proxy::parse(it))
            .any(|it| it.holds(peer))
    };
    let nobody = format!("a token of role {}", role.name());
    if config.user_header.is_empty() || !peer.is_some_and(is_trusted) {
        return nobody;
    }
    let told: Vec<_> = headers
        .get_all(config.user_header.as_str())
        .iter()
        .map(|it| String::from_utf8_lossy(it.as_bytes()))
        .collect();
    let told = match &told[..] {
        [] => return nobody,
        [one] => one.trim(),
        many => {
            // It stands where people look for the name, so that the proxy is mended.
            return format!(
                "{nobody} (the proxy names {}, none is believed)",
                many.len()
            );
        }
    };
    // Google's proxy writes accounts.google.com:user@example.org.
    let name = told.strip_prefix("accounts.google.com:").unwrap_or(told);
    if name.is_empty() {
        return nobody;
    }
    let mut name = text::harmless(name, MAX_PERSON_BYTES);
    name.truncate(name.floor_char_boundary(MAX_PERSON_BYTES));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> AuthConfig {
        AuthConfig {
            user_header: "x-goog-authenticated-user-email".to_owned(),
            trusted_proxies: vec!["10.0.0.0/8".to_owned(), "fd00::1".to_owned()],
            ..AuthConfig::default()
        }
    }

    #[test]
    fn the_header_of_a_trusted_proxy_names_the_person_and_that_of_anyone_else_does_not() {
        let mut headers = HeaderMap::new();
        let said = "accounts.google.com:ada@example.org".parse().unwrap();
        headers.insert("x-goog-authenticated-user-email", said);
        for (peer, expected) in [
            (Some("10.200.3.4"), "ada@example.org"),
            (Some("::ffff:10.1.1.1"), "ada@example.org"),
            (Some("fd00::1"), "ada@example.org"),
            (Some("11.0.0.1"), "a token of role operate"),
            (Some("fd00::2"), "a token of role operate"),
            (None, "a token of role operate"),
        ] {
            let peer = peer.map(|it| it.parse().unwrap());
            let named = name(&config(), &headers, peer, Role::Operate);
            assert_eq!(named, expected, "{peer:?}");
        }
        let silent = name(
            &config(),
            &HeaderMap::new(),
            "10.0.0.1".parse().ok(),
            Role::Operate,
        );
        assert_eq!(silent, "a token of role operate", "the proxy names nobody");
        let off = name(
            &AuthConfig::default(),
            &headers,
            "10.0.0.1".parse().ok(),
            Role::Operate,
        );
        assert_eq!(off, "a token of role operate");
    }

    fn named(values: &[&[u8]]) -> String {
        let mut headers = HeaderMap::new();
        for value in values {
            let value = http::HeaderValue::from_bytes(value).unwrap();
            headers.append("x-goog-authenticated-user-email", value);
        }
        name(&config(), &headers, "10.0.0.1".parse().ok(), Role::Operate)
    }

    #[test]
    fn of_several_names_none_is_believed_because_the_sender_may_have_written_one() {
        assert_eq!(
            named(&[b"mallory", b"ada@example.org"]),
            "a token of role operate (the proxy names 2, none is believed)"
        );
        assert_eq!(named(&[b"ada@example.org"]), "ada@example.org");
        for empty in [&b"  "[..], b"accounts.google.com:"] {
            assert_eq!(named(&[empty]), "a token of role operate");
        }
    }

    #[test]
    fn a_name_that_is_not_ascii_is_taken_and_what_is_not_seen_is_marked_in_it() {
        assert_eq!(named(&["Zoë Łukasz".as_bytes()]), "Zoë Łukasz");
        assert_eq!(named(&[b"Zo\xeb"]), "Zo\u{fffd}", "no UTF-8");
        for hidden in ['\u{85}', '\u{202e}', '\u{200b}'] {
            let written = format!("ada{hidden}bob");
            assert_eq!(named(&[written.as_bytes()]), "ada\u{fffd}bob");
        }
        let long = named(&["ë".repeat(500).as_bytes()]);
        assert_eq!(long, "ë".repeat(MAX_PERSON_BYTES / 2));
    }

    #[test]
    fn a_header_without_proxies_and_a_proxy_that_is_none_are_refused_by_key() {
        assert_eq!(check(&config()), Ok(()));
        assert_eq!(check(&AuthConfig::default()), Ok(()));
        let mut open = config();
        open.trusted_proxies.clear();
        assert!(check(&open).unwrap_err().contains("auth.trusted_proxies"));
        for bad in ["10.0.0.0/33", "proxy", ""] {
            let mut wrong = config();
            wrong.trusted_proxies.push(bad.to_owned());
            let error = check(&wrong).unwrap_err();
            assert!(error.contains("auth.trusted_proxies"), "{error}");
        }
    }
}
