//! The address in a URL, refused URLs, and how one is shown: a query may be a password, and is never printed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use max_weights::source::store;
use max_weights::text;
use max_weights::{Error, Result};
use url::{Host, Url};

use crate::failure::RequestFailure;

/// The address in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UrlAddress {
    /// An object, or a prefix, of a bucket.
    Bucket {
        /// The protocol.
        kind: StoreKind,
        /// The bucket or container.
        bucket: String,
        /// The key, not percent-encoded.
        key: String,
    },
    /// A file of a web server.
    Web(Url),
    /// A file, or the folder, of a model of the hub.
    Hub {
        /// `org/model`.
        model: String,
        /// A branch, a tag or a commit.
        revision: String,
        /// Below the model's folder; empty for the folder.
        path: String,
    },
}

/// A protocol of object stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum StoreKind {
    S3,
    Google,
    Azure,
}

impl UrlAddress {
    /// The address in this URL. `allow_http` allows unencrypted URLs to other machines.
    pub(crate) fn of(path: &Path, allow_http: bool) -> Result<Self> {
        let refuse = |cause: &str| Err(Error::Argument(format!("{}: {cause}", display_url(path))));
        let Some(text) = path.to_str() else { return refuse("a URL is text in UTF-8") };
        if text.contains(['\0', '\n', '\r']) {
            return refuse("a URL must not have line breaks or NUL in it");
        }
        let Some((scheme, rest)) = text.split_once("://") else { return refuse("it is not a URL") };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if scheme != "hf" && authority.contains('@') {
            return refuse(
                "a URL with a user and a password is refused, because URLs are shown: give credentials= instead",
            );
        }
        match scheme {
            "s3" => Self::bucket(StoreKind::S3, rest, path),
            "gs" => Self::bucket(StoreKind::Google, rest, path),
            "az" => Self::bucket(StoreKind::Azure, rest, path),
            "hf" => Self::hub(rest, path),
            "https" | "http" => {
                let Ok(url) = Url::parse(text) else { return refuse("it is not a URL of the web") };
                if scheme == "http" && !allow_http && !is_loopback(&url) {
                    return refuse("http:// is not encrypted: use https://, or say allow_http=True");
                }
                Ok(Self::Web(url))
            }
            _ => refuse("the schemes are s3, gs, az, hf, https and http"),
        }
    }

    fn bucket(kind: StoreKind, rest: &str, path: &Path) -> Result<Self> {
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if bucket.is_empty() || !bucket.bytes().all(plain) {
            return Err(Error::Argument(format!("{}: a URL of a bucket is scheme://bucket/key", display_url(path))));
        }
        Ok(Self::Bucket { kind, bucket: bucket.to_owned(), key: key.to_owned() })
    }

    /// `org/model`, `org/model@revision`, each with `/path` behind it.
    fn hub(rest: &str, path: &Path) -> Result<Self> {
        let plain = |text: &str| {
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
            !text.is_empty() && text.bytes().all(fits) && !text.contains("..")
        };
        let mut parts = rest.splitn(3, '/');
        let (org, rest, path_below) =
            (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let (name, revision) = rest.split_once('@').unwrap_or((rest, "main"));
        let below = path_below.trim_matches('/');
        let steps_out = below.split('/').any(|part| part == "..");
        if !plain(org) || !plain(name) || revision.is_empty() || revision.contains(['?', '#']) || steps_out {
            let cause = "a URL of the hub is hf://org/model, hf://org/model@revision, or a file below it";
            return Err(Error::Argument(format!("{}: {cause}", display_url(path))));
        }
        Ok(Self::Hub { model: format!("{org}/{name}"), revision: revision.to_owned(), path: below.to_owned() })
    }
}

/// The URL for messages: without its query, which may hold a signature.
pub(crate) fn display_url(path: &Path) -> String {
    text::path(&store::redacted(path))
}

/// A URL without its query and what follows it.
pub(crate) fn without_query(url: &str) -> &str {
    url.split(['?', '#']).next().unwrap_or_default()
}

/// Whether a URL names this machine by its host alone.
pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

/// Whether an address is in a network that public servers must not redirect to: this machine, its neighbours, and the metadata services of clouds.
pub(crate) fn is_inner(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_inner_v4(address),
        IpAddr::V6(address) => is_inner_v6(address) || embedded(address).is_some_and(is_inner_v4),
    }
}

/// Whether an address is link-local, or one at which a cloud gives its machine secrets.
pub(crate) fn is_link_local(address: IpAddr) -> bool {
    let is_v4 = |address: Ipv4Addr| address.is_link_local() || METADATA_V4.contains(&address);
    match address {
        IpAddr::V4(address) => is_v4(address),
        IpAddr::V6(address) => {
            address.segments()[0] & 0xFFC0 == 0xFE80
                || METADATA_V6.contains(&address)
                || embedded(address).is_some_and(is_v4)
        }
    }
}

/// Addresses of metadata services that are not link-local: of Azure, Alibaba and Oracle, and of Amazon and Google.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192)];
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xFD00, 0xEC2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xFD20, 0xCE, 0, 0, 0, 0, 0, 0x254)];

/// The IPv4 address that is embedded in an IPv6 address: a gateway forwards to it.
fn embedded(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = address.segments();
    let v4 = |high: u16, low: u16| Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)));
    match parts {
        // Teredo
        [0x2001, 0, .., high, low] => v4(!high, !low),
        // 6to4; compatible, mapped, translated; NAT64, of the world and of a network
        [0x2002, high, low, ..]
        | [0, 0, 0, 0, 0, 0 | 0xFFFF, high, low]
        | [0, 0, 0, 0, 0xFFFF, 0, high, low]
        | [0x64, 0xFF9B, 0 | 1, .., high, low]
        // ISATAP
        | [_, _, _, _, 0 | 0x200, 0x5EFE, high, low] => v4(high, low),
        _ => None,
    }
}

fn is_inner_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    let is_shared = first == 100 && (64..128).contains(&second);
    let is_for_protocols = (first, second, third) == (192, 0, 0);
    let is_for_benches = first == 198 && second & 0xFE == 18;
    let is_reserved = first >= 240;
    address.is_loopback()
        || address.is_private()
        || address.is_link_local()
        || address.is_unspecified()
        || address.is_multicast()
        || is_shared
        || is_for_protocols
        || is_for_benches
        || is_reserved
        || first == 0
        || METADATA_V4.contains(&address)
}

fn is_inner_v6(address: Ipv6Addr) -> bool {
    let [first, second, third, ..] = address.segments();
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || first & 0xFE00 == 0xFC00
        // Of a link (fe80::/10), and of a site (fec0::/10).
        || first & 0xFF80 == 0xFE80
        // A network's own NAT64.
        || (first, second, third) == (0x64, 0xFF9B, 1)
}

/// Why a redirect target is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Refused {
    Inner,
    LinkLocal,
}

impl Refused {
    pub(crate) fn failure(self) -> RequestFailure {
        RequestFailure::wrong(match self {
            Self::Inner => "the server redirects to an address of a private network, which is not followed",
            Self::LinkLocal => {
                "the server redirects to a link-local address, at which clouds keep the secrets of their machines, which is not followed"
            }
        })
    }
}

/// Whether the host of a URL is a link-local address; names must be resolved first.
pub(crate) fn names_link_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => is_link_local(address.into()),
        Some(Host::Ipv6(address)) => is_link_local(address.into()),
        Some(Host::Domain(_)) | None => false,
    }
}

/// Whether the host of a URL is an address of a private network; names must be resolved first.
pub(crate) fn names_inner(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => is_inner(address.into()),
        Some(Host::Ipv6(address)) => is_inner(address.into()),
        Some(Host::Domain(_)) => is_loopback(url),
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<UrlAddress> {
        UrlAddress::of(Path::new(text), false)
    }

    #[test]
    fn what_urls_name() {
        let bucket =
            |kind, bucket: &str, key: &str| UrlAddress::Bucket { kind, bucket: bucket.into(), key: key.into() };
        assert_eq!(of("s3://b/a/c d.safetensors").expect("s3"), bucket(StoreKind::S3, "b", "a/c d.safetensors"));
        assert_eq!(of("gs://b").expect("gs"), bucket(StoreKind::Google, "b", ""));
        assert_eq!(of("az://container/x").expect("az"), bucket(StoreKind::Azure, "container", "x"));
        let hub = |model: &str, revision: &str, path: &str| UrlAddress::Hub {
            model: model.into(),
            revision: revision.into(),
            path: path.into(),
        };
        assert_eq!(of("hf://org/model").expect("hf"), hub("org/model", "main", ""));
        assert_eq!(of("hf://org/model@v1/a/b.gguf").expect("hf"), hub("org/model", "v1", "a/b.gguf"));
        assert!(matches!(of("https://host/a?b=c"), Ok(UrlAddress::Web(_))));
        assert!(matches!(of("http://127.0.0.1:8/a"), Ok(UrlAddress::Web(_))));
    }

    #[test]
    fn what_is_refused_is_refused_without_its_secrets() {
        for (text, cause) in [
            ("https://user:secret@host/a", "credentials="),
            ("s3://key:secret@bucket/a", "credentials="),
            ("http://example.org/a", "allow_http=True"),
            ("hf://model", "hf://org/model"),
            ("hf://org/model/../x", "hf://org/model"),
            ("hf://org/..", "hf://org/model"),
            ("s3:///a", "scheme://bucket/key"),
            ("s3://a b/c", "scheme://bucket/key"),
            ("https://host/a\nb", "line breaks"),
        ] {
            let error = of(text).expect_err(text).to_string();
            assert!(error.contains(cause), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn queries_and_passwords_are_not_shown() {
        assert_eq!(display_url(Path::new("https://u:p@host/a.bin?X-Amz-Signature=s#f")), "https://host/a.bin?…");
        assert_eq!(display_url(Path::new("hf://org/model@main/x")), "hf://org/model@main/x");
    }

    #[test]
    fn inner_networks() {
        let inner = |text: &str| is_inner(text.parse().expect("an address"));
        for address in
            ["127.0.0.1", "10.1.2.3", "169.254.169.254", "192.168.0.1", "::1", "fd00::1", "fe80::1", "0.0.0.0"]
        {
            assert!(inner(address), "{address}");
        }
        for address in [
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "::ffff:0:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::808:808",
            "2002:a00:1::1",
            "2002:c0a8:1::",
            "2001:0:808:808::f5ff:fffe",
            "2001:db8::5efe:10.0.0.1",
            "fec0::1",
            "feff::1",
            "100.100.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.0.1",
        ] {
            assert!(inner(address), "{address}");
        }
        for address in [
            "8.8.8.8",
            "2001:4860::1",
            "64:ff9b::808:808",
            "2002:808:808::1",
            "::ffff:8.8.8.8",
            "198.17.0.1",
            "198.20.0.1",
            "192.0.1.1",
            "223.255.255.255",
        ] {
            assert!(!inner(address), "{address}");
        }
    }

    #[test]
    fn addresses_at_which_machines_are_told_secrets() {
        let link_local = |text: &str| is_link_local(text.parse().expect("an address"));
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "::ffff:169.254.169.254",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
        ] {
            assert!(link_local(address) && is_inner(address.parse().expect("an address")), "{address}");
        }
        for address in ["127.0.0.1", "10.0.0.1", "::1", "fd00::1", "fec0::1", "8.8.8.8", "64:ff9b::808:808"] {
            assert!(!link_local(address), "{address}");
        }
    }
}
