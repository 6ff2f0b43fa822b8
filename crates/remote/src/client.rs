//! The HTTP clients: one for servers that the user names, and one for those that servers name, which must not lead into the inner network.

use std::fs;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::time::Duration;

use max_weights::memory::ForkMutex;
use max_weights::{Error, Result, text};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, redirect};

use crate::failure::Failure;
use crate::url::is_inner;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// Environment variables that name a file of certificates, beside those of the system.
const BUNDLES: [&str; 3] = ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// The clients of one process: a forked child must not use the connections of its parent.
#[derive(Debug, Clone)]
pub(crate) struct Clients {
    /// For URLs of the user's.
    pub(crate) named: Client,
    /// For URLs that an answer names.
    pub(crate) led_to: Client,
}

static CLIENTS: ForkMutex<Option<(u32, Clients)>> = ForkMutex::new();

/// The clients of this process.
pub(crate) fn clients() -> Result<Clients> {
    let mut clients = CLIENTS.lock();
    let process = std::process::id();
    if let Some((of, clients)) = &*clients
        && *of == process
    {
        return Ok(clients.clone());
    }
    let new = Clients { named: client(false)?, led_to: client(true)? };
    *clients = Some((process, new.clone()));
    Ok(new)
}

fn client(outside: bool) -> Result<Client> {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        // Whoever set one before in this process has the same functions in another build.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    let mut builder = Client::builder()
        .user_agent(concat!("max-weights/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT)
        .http1_only()
        .tcp_nodelay(true)
        .pool_max_idle_per_host(64);
    builder = builder.tls_certs_merge(extra_certificates()?);
    if outside {
        builder = builder.no_proxy().dns_resolver(Arc::new(Outside));
    }
    builder
        .build()
        .map_err(|error| Error::Argument(format!("no HTTPS connections can be made: {}", Failure::from(error))))
}

/// Those of all files that the environment names, but for the one that the system's verifier reads anyway.
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
        let unreadable = |_| Error::Argument(format!("{}: {name} names no file of certificates", text::path(&path)));
        certificates.extend(bundle.map_err(unreadable)?);
    }
    Ok(certificates)
}

/// Looks names up, and gives no address of an inner network.
#[derive(Debug)]
struct Outside;

impl Resolve for Outside {
    fn resolve(&self, name: Name) -> Resolving {
        let name = name.as_str().to_owned();
        Box::pin(async move {
            let look = tokio::task::spawn_blocking(move || -> std::io::Result<Vec<SocketAddr>> {
                Ok((&*name, 0).to_socket_addrs()?.collect())
            });
            let found = look.await.map_err(std::io::Error::other)??;
            let outer: Vec<SocketAddr> = found.into_iter().filter(|address| !is_inner(address.ip())).collect();
            if outer.is_empty() {
                let cause = Failure::wrong("the server leads to an address of an inner network, which is not followed");
                return Err(cause.into());
            }
            Ok(Box::new(outer.into_iter()) as Addrs)
        })
    }
}
