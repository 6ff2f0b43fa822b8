//! Remote files: the store for URLs, with the user's options, and files whose bytes a user's function reads.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use max_weights::memory::{FileIdentity, IdentityKind, Origin};
use max_weights::source::store::ObjectStore;
use max_weights::source::{Filesystem, ReadCost, ReadRange, Source};
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

use crate::ending::reattached;
use crate::error::BindingResult;

/// The assumed cost of a call of the user's function, which may use a server: a gap of 256 KB.
const COST: ReadCost = ReadCost { latency: 2_500_000, rate: 104_857_600 };

/// The store for one user's options. It is not pickled: another process finds its own credentials.
#[derive(Clone)]
pub(crate) struct StoreHandle(pub(crate) Arc<dyn ObjectStore>);

impl<'py> FromPyObject<'_, 'py> for StoreHandle {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        Ok(object.cast::<RemoteStore>()?.get().handle())
    }
}

impl<'py> IntoPyObject<'py> for StoreHandle {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        Ok(py.None().into_bound(py))
    }
}

impl PartialEq for StoreHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for StoreHandle {}

impl Hash for StoreHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}

/// The store with the options of a `max_weights.remote.Remote`.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct RemoteStore {
    store: Arc<dyn ObjectStore>,
}

#[pymethods]
impl RemoteStore {
    #[new]
    #[pyo3(signature = (*, endpoint, region, credentials, anonymous, allow_http, requests, request_bytes, retries, stall, timeout, cache, cache_bytes))]
    #[expect(clippy::too_many_arguments, reason = "they are the fields of the Python class")]
    fn new(
        endpoint: Option<String>,
        region: Option<String>,
        credentials: Option<Py<PyAny>>,
        anonymous: bool,
        allow_http: bool,
        requests: usize,
        request_bytes: Option<u64>,
        retries: u32,
        stall: f64,
        timeout: Option<f64>,
        cache: Option<PathBuf>,
        cache_bytes: u64,
    ) -> BindingResult<Self> {
        #[cfg(feature = "remote")]
        {
            use max_weights_remote::{CacheOptions, Credentials, Remote, RemoteOptions, Secret};
            use std::time::Duration;

            let seconds = |value: f64, name: &str| {
                Duration::try_from_secs_f64(value)
                    .ok()
                    .filter(|time| !time.is_zero())
                    .ok_or_else(|| Error::Argument(format!("{name} must be a number of seconds above 0, not {value}")))
            };
            let mut options = RemoteOptions::default();
            options.endpoint = endpoint;
            options.region = region;
            options.allow_http = allow_http;
            options.requests = requests.max(1);
            options.request_bytes = request_bytes;
            options.retries = retries;
            options.stall = seconds(stall, "stall")?;
            options.timeout = timeout.map(|timeout| seconds(timeout, "timeout")).transpose()?;
            options.cache = cache.map(|folder| {
                let mut cache = CacheOptions::new(folder);
                cache.limit = cache_bytes;
                cache.warn = Some(Arc::new(warn));
                cache
            });
            options.warn = Some(Arc::new(warn));
            options.credentials = match credentials {
                _ if anonymous => Credentials::Anonymous,
                None => Credentials::Found,
                Some(function) => Credentials::Provider(Arc::new(move || {
                    let fields = reattached(|py| {
                        let fields: HashMap<String, Option<String>> = function.call0(py)?.extract(py)?;
                        PyResult::Ok(fields)
                    });
                    match fields {
                        Some(Ok(fields)) => Ok(fields
                            .into_iter()
                            .filter_map(|(name, value)| Some((name, Secret::new(value?))))
                            .collect()),
                        Some(Err(error)) => Err(Error::Argument(error.to_string())),
                        None => Err(Error::Interrupted),
                    }
                })),
            };
            Ok(Self { store: Arc::new(Remote::new(options)) })
        }
        #[cfg(not(feature = "remote"))]
        {
            let _ = (
                endpoint,
                region,
                credentials,
                anonymous,
                allow_http,
                requests,
                request_bytes,
                retries,
                stall,
                timeout,
                cache,
                cache_bytes,
            );
            Err(Error::Argument("this build opens no URLs: it was built without the feature `remote`".into()).into())
        }
    }
}

impl RemoteStore {
    pub(crate) fn handle(&self) -> StoreHandle {
        StoreHandle(self.store.clone())
    }
}

/// Installs the default store.
#[cfg(feature = "remote")]
pub(crate) fn install() {
    let mut options = max_weights_remote::RemoteOptions::default();
    options.warn = Some(Arc::new(warn));
    max_weights_remote::Remote::new(options).install();
}

/// Warns the user, from any thread.
#[cfg(feature = "remote")]
fn warn(text: &str) {
    reattached(|py| {
        let warned = py.import("warnings").and_then(|warnings| warnings.call_method1("warn", (text,)));
        if let Err(error) = warned {
            // If warnings are errors: the bytes that were read are nevertheless right.
            error.write_unraisable(py, None);
        }
    });
}

/// A file whose ranges of bytes a function reads: `max_weights.remote.source`.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct RangeSource {
    source: Arc<dyn Source>,
}

#[pymethods]
impl RangeSource {
    #[new]
    #[pyo3(signature = (read_ranges, size, name, identity))]
    fn new(read_ranges: Py<PyAny>, size: u64, name: PathBuf, identity: &[u8]) -> Self {
        let mut tag = [0; 32];
        // The caller hashes longer ones.
        let len = identity.len().min(tag.len());
        tag[..len].copy_from_slice(&identity[..len]);
        let fingerprint = FileIdentity { len: size, identity: IdentityKind::Object(tag) };
        let origin = Arc::new(Origin { absolute: name.clone(), path: name, fingerprint });
        Self { source: Arc::new(Ranges { origin, read_ranges }) }
    }

    fn __repr__(&self) -> String {
        format!("<{} of {} bytes>", max_weights::text::path(self.source.path()), self.source.len())
    }
}

impl RangeSource {
    pub(crate) fn source(&self) -> Arc<dyn Source> {
        self.source.clone()
    }
}

struct Ranges {
    origin: Arc<Origin>,
    read_ranges: Py<PyAny>,
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ranges({}, {} bytes)", self.origin.path.display(), self.origin.fingerprint.len)
    }
}

impl Ranges {
    /// Calls the function for all parts, and copies the results.
    fn fill(&self, py: Python<'_>, parts: &mut [ReadRange<'_>]) -> PyResult<()> {
        let ranges: Vec<(u64, u64)> =
            parts.iter().map(|part| (part.offset, part.offset + part.bytes.len() as u64)).collect();
        let given = self.read_ranges.call1(py, (ranges,))?;
        let mut given = given.bind(py).try_iter()?;
        for part in parts {
            let Some(bytes) = given.next() else {
                return Err(pyo3::exceptions::PyValueError::new_err("it gave fewer buffers than ranges"));
            };
            let bytes = bytes?;
            let buffer = PyBuffer::<u8>::get(&bytes)?;
            if buffer.item_count() != part.bytes.len() {
                let (found, expected) = (buffer.item_count(), part.bytes.len());
                let cause = format!("it gave {found} bytes for a range of {expected} from {}", part.offset);
                return Err(pyo3::exceptions::PyValueError::new_err(cause));
            }
            buffer.copy_to_slice(py, part.bytes)?;
        }
        Ok(())
    }
}

impl Source for Ranges {
    fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        interrupt()?;
        let failed = |cause: String| Error::io(&self.origin.path, "read ranges of it", std::io::Error::other(cause));
        match reattached(|py| self.fill(py, parts).map_err(|error| error.to_string())) {
            Some(Ok(())) => Ok(()),
            Some(Err(cause)) => Err(failed(cause)),
            None => Err(Error::Interrupted),
        }
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(()) // it is for the function to say
    }

    fn filesystem(&self) -> Option<Filesystem> {
        Some(Filesystem::Server("a function of the caller's"))
    }

    fn cost(&self) -> ReadCost {
        COST
    }
}
