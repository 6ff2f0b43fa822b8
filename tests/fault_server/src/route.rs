//! Which part of the server a path belongs to.

use crate::azure;
use crate::http::Head;
use crate::hub::{self, HubRequest};
use crate::s3::{self, Operation};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// `/files/…`: a file over plain HTTP.
    File(String),
    /// `/s3/BUCKET/KEY`.
    Store {
        bucket: String,
        key: String,
    },
    /// `/azure/CONTAINER/KEY`.
    Azure {
        container: String,
        key: String,
    },
    /// `/hub/…`.
    Hub(HubRequest),
    /// `/machine/…`: who programs on a machine are.
    Machine(String),
    /// `/cdn/…`: what links of the hub lead to.
    Link(String),
    /// `/_control`, `/_counts` and `/_log`, which are not counted.
    Control(String),
    Nothing,
}

impl Route {
    pub(crate) fn of(path: &str) -> Self {
        let owned = str::to_owned;
        let Some((first, rest)) = path.strip_prefix('/').map(|path| path.split_once('/').unwrap_or((path, ""))) else {
            return Self::Nothing;
        };
        match first {
            "files" => Self::File(owned(rest)),
            "s3" if !rest.is_empty() => {
                let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
                Self::Store { bucket: owned(bucket), key: owned(key) }
            }
            "azure" if !rest.is_empty() => {
                let (container, key) = rest.split_once('/').unwrap_or((rest, ""));
                Self::Azure { container: owned(container), key: owned(key) }
            }
            "hub" => hub::requested(rest).map_or(Self::Nothing, Self::Hub),
            "machine" => Self::Machine(owned(rest)),
            "cdn" => Self::Link(owned(rest)),
            "_control" | "_counts" | "_log" => Self::Control(owned(first)),
            _ => Self::Nothing,
        }
    }

    pub(crate) fn operation(&self, head: &Head) -> Operation {
        match self {
            Self::Store { key, .. } => s3::operation(head, key),
            Self::Azure { key, .. } => azure::operation(head, key),
            Self::File(_) | Self::Link(_) => Operation::Read,
            Self::Hub(HubRequest::Model { .. } | HubRequest::Tree { .. }) => Operation::List,
            _ => Operation::Other,
        }
    }
}
