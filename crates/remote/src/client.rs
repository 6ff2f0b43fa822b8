//! The HTTP clients: one for servers that the user names, and two for redirect targets, which must not reach networks that only this machine can.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use max_weights::memory::ForkOnce;
use max_weights::{Error, Result, text};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, redirect};

use crate::failure::RequestFailure;
use crate::url::{Refused, is_inner, is_link_local};

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// Environment variables that name a file of certificates, in addition to those of the system.
const BUNDLES: [&str; 3] = ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// The clients of one process.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    /// For URLs of the user.
    pub(crate) named: Client,
    /// For redirect targets.
    pub(crate) redirect_target: Client,
    /// For redirect targets of a server in a private network.
    pub(crate) redirect_inside: Client,
}

static CLIENTS: ForkOnce<Clients> = ForkOnce::new();

/// The clients of this process.
pub(crate) fn clients() -> Result<Clients> {
    let make = || {
        // An error means that this process has installed the same functions from another build.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Clients {
            named: client(None)?,
            // Not through a proxy, which resolves names itself.
            redirect_target: client(Some((is_inner, Refused::Inner)))?,
            redirect_inside: client(Some((is_link_local, Refused::LinkLocal)))?,
        })
    };
    CLIENTS.get(|_| true, make)
}

/// A test for addresses, and the error for them.
type RefusedAddresses = (fn(IpAddr) -> bool, Refused);

/// A client that does not connect to these addresses, even if a name resolves to them.
fn client(refused: Option<RefusedAddresses>) -> Result<Client> {
    let mut builder = Client::builder()
        .user_agent(concat!("max-weights/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT)
        .http1_only()
        .tcp_nodelay(true)
        .pool_max_idle_per_host(64);
    builder = builder.tls_certs_merge(extra_certificates()?);
    if let Some((is_refused, why)) = refused {
        builder = builder.no_proxy().dns_resolver(Arc::new(LookUp { is_refused, why }));
    }
    builder
        .build()
        .map_err(|error| Error::Argument(format!("no HTTPS connections can be made: {}", RequestFailure::from(error))))
}

/// The certificates of all files that the environment names, except the one that the system's verifier reads anyway.
fn extra_certificates() -> Result<Vec<Certificate>> {
    let mut read = vec![std::env::var_os("SSL_CERT_FILE")];
    let mut certificates = Vec::new();
    for name in BUNDLES {
        let named = std::env::var_os(name).filter(|path| !path.is_empty());
        let Some(path) = named.clone().filter(|_| !read.contains(&named)).map(PathBuf::from) else { continue };
        read.push(named);
        let bytes =
            fs::read(&path).map_err(|error| Error::io(&path, format!("read the certificates of {name}"), error))?;
        let bundle = Certificate::from_pem_bundle(&bytes);
        let unreadable =
            |_| Error::Argument(format!("{}: {name} must name a file of PEM certificates", text::path(&path)));
        certificates.extend(bundle.map_err(unreadable)?);
    }
    Ok(certificates)
}

/// Resolves names, and drops refused addresses.
#[derive(Debug)]
struct LookUp {
    is_refused: fn(IpAddr) -> bool,
    why: Refused,
}

impl Resolve for LookUp {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        let (is_refused, why) = (self.is_refused, self.why);
        Box::pin(async move {
            let look = tokio::task::spawn_blocking(move || -> std::io::Result<Vec<SocketAddr>> {
                Ok((&*name, 0).to_socket_addrs()?.collect())
            });
            let found = look.await.map_err(std::io::Error::other)??;
            let outer: Vec<SocketAddr> = found.into_iter().filter(|address| !is_refused(address.ip())).collect();
            if outer.is_empty() {
                return Err(why.failure().into());
            }
            Ok(Box::new(outer.into_iter()) as Addrs)
        })
    }
}
