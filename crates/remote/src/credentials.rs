//! Credentials: the client of a bucket, authenticated by the environment, the profile in `~/.aws`, the identity of the machine, or a function.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::aws::AmazonS3Builder;
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::HttpConnector;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::list::PaginatedListStore;
use object_store::multipart::MultipartStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::failure::{FailureClass, RequestFailure, of_store};
use crate::options::{CredentialFields, Credentials, RemoteOptions, Secret};
use crate::url::StoreKind;

/// The region for servers without regions.
const ANY_REGION: &str = "us-east-1";
/// Variables that indicate credentials in the environment, or from the machine's identity.
const KNOWN_TO_THE_ENVIRONMENT: [&str; 4] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
];

/// The client of a bucket, to list, to read and to write.
pub(crate) trait Client: ObjectStore + MultipartStore + PaginatedListStore {}

impl<T: ObjectStore + MultipartStore + PaginatedListStore> Client for T {}

/// The client of a bucket.
pub(crate) fn store(
    kind: StoreKind,
    bucket: &str,
    options: &RemoteOptions,
    client: ClientOptions,
    retry: RetryConfig,
    connector: impl HttpConnector,
) -> Result<Arc<dyn Client>, RequestFailure> {
    let fields = match &options.credentials {
        Credentials::Provider(provider) => {
            Some(provider().map_err(|error| RequestFailure::wrong(format!("credentials= failed: {error}")))?)
        }
        _ => None,
    };
    let anonymous = matches!(options.credentials, Credentials::Anonymous);
    if let Some(endpoint) = &options.endpoint {
        require_encrypted(endpoint, options.allow_http)?;
    }
    // The builders are three types with the same methods.
    macro_rules! connected {
        ($builder:expr) => {{
            let builder = $builder.with_client_options(client).with_retry(retry).with_http_connector(connector);
            Arc::new(builder.build().map_err(of_store)?)
        }};
    }
    Ok(match kind {
        StoreKind::S3 => {
            let builder = s3(bucket, options, fields, anonymous)?;
            connected!(builder)
        }
        StoreKind::Google => {
            let mut builder =
                GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_skip_signature(anonymous);
            if let Some(endpoint) = &options.endpoint {
                builder = builder.with_base_url(endpoint);
            }
            if let Some(token) = fields.as_ref().and_then(|fields| field(fields, "token")) {
                builder = builder.with_bearer_token(token.reveal());
            }
            connected!(builder)
        }
        StoreKind::Azure => {
            let mut builder =
                MicrosoftAzureBuilder::from_env().with_container_name(bucket).with_skip_signature(anonymous);
            if let Some(endpoint) = &options.endpoint {
                builder = builder.with_endpoint(endpoint.clone());
            }
            for (name, key) in [
                ("account", AzureConfigKey::AccountName),
                ("key", AzureConfigKey::AccessKey),
                ("sas", AzureConfigKey::SasKey),
                ("token", AzureConfigKey::Token),
            ] {
                if let Some(value) = fields.as_ref().and_then(|fields| field(fields, name)) {
                    builder = builder.with_config(key, value.reveal());
                }
            }
            connected!(builder)
        }
    })
}

fn s3(
    bucket: &str,
    options: &RemoteOptions,
    fields: Option<CredentialFields>,
    anonymous: bool,
) -> Result<AmazonS3Builder, RequestFailure> {
    let mut builder = if anonymous { AmazonS3Builder::new() } else { AmazonS3Builder::from_env() };
    builder = builder.with_bucket_name(bucket).with_skip_signature(anonymous).with_allow_http(true);
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let in_environment = KNOWN_TO_THE_ENVIRONMENT.iter().any(|name| variable(name).is_some());
    let profile = if anonymous { HashMap::new() } else { profile() };
    let mut region =
        options.region.clone().or_else(|| variable("AWS_REGION")).or_else(|| variable("AWS_DEFAULT_REGION"));
    region = region.or_else(|| profile.get("region").map(|region| region.reveal().to_owned()));
    builder = builder.with_region(region.unwrap_or_else(|| ANY_REGION.to_owned()));
    let endpoint =
        options.endpoint.clone().or_else(|| variable("AWS_ENDPOINT_URL_S3")).or_else(|| variable("AWS_ENDPOINT_URL"));
    if let Some(endpoint) = endpoint.or_else(|| profile.get("endpoint_url").map(|url| url.reveal().to_owned())) {
        require_encrypted(&endpoint, options.allow_http)?;
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(fields) = &fields {
        let Some((key, secret)) = field(fields, "key_id").zip(field(fields, "secret")) else {
            return Err(RequestFailure::wrong(
                "credentials= of S3 gives key_id and secret, and token where there is one",
            ));
        };
        builder = builder.with_access_key_id(key.reveal()).with_secret_access_key(secret.reveal());
        if let Some(token) = field(fields, "token") {
            builder = builder.with_token(token.reveal());
        }
    } else if !in_environment {
        if let Some(way) = way_of_others(&profile) {
            let name = max_weights::text::escape(&profile_name());
            let cause = format!(
                "the profile '{name}' has {way}, which boto3 knows: give credentials= a function that asks boto3"
            );
            return Err(RequestFailure::new(FailureClass::Denied, cause));
        }
        if let Some((key, secret)) = profile.get("aws_access_key_id").zip(profile.get("aws_secret_access_key")) {
            builder = builder.with_access_key_id(key.reveal()).with_secret_access_key(secret.reveal());
            if let Some(token) = profile.get("aws_session_token") {
                builder = builder.with_token(token.reveal());
            }
        }
    }
    Ok(builder)
}

fn require_encrypted(endpoint: &str, allow_http: bool) -> Result<(), RequestFailure> {
    let Ok(url) = url::Url::parse(endpoint) else { return Err(RequestFailure::wrong("the endpoint is not a URL")) };
    if url.scheme() == "http" && !allow_http && !crate::url::is_loopback(&url) {
        return Err(RequestFailure::wrong("the endpoint is not encrypted: use https://, or say allow_http=True"));
    }
    Ok(())
}

fn field<'a>(fields: &'a CredentialFields, name: &str) -> Option<&'a Secret> {
    fields.iter().find_map(|(of, value)| (of == name).then_some(value))
}

/// How a profile authenticates other than by its own keys, in a way that is not supported here. The last two ways count only if there are no keys.
fn way_of_others(profile: &HashMap<String, Secret>) -> Option<&'static str> {
    let has = |name: &&&str| profile.contains_key(**name);
    let ways = ["role_arn", "sso_session", "sso_account_id", "sso_start_url", "credential_process", "login_session"];
    let count = if profile.contains_key("aws_access_key_id") { ways.len() - 2 } else { ways.len() };
    ways[..count].iter().find(has).copied()
}

fn profile_name() -> String {
    std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "default".to_owned())
}

/// The fields of the profile that `AWS_PROFILE` names, or of `default`, from the files in `~/.aws`.
fn profile() -> HashMap<String, Secret> {
    let name = profile_name();
    let path = |variable: &str, file: &str| {
        std::env::var_os(variable).map(PathBuf::from).or_else(|| Some(std::env::home_dir()?.join(".aws").join(file)))
    };
    let mut fields = HashMap::new();
    for (path, section) in [
        (path("AWS_CONFIG_FILE", "config"), if name == "default" { name.clone() } else { format!("profile {name}") }),
        (path("AWS_SHARED_CREDENTIALS_FILE", "credentials"), name.clone()),
    ] {
        let text = path.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        fields.extend(section_of(&text, &section));
    }
    fields
}

/// The fields of one section of a file like those in `~/.aws`.
fn section_of(text: &str, section: &str) -> HashMap<String, Secret> {
    let mut inside = false;
    let mut fields = HashMap::new();
    for line in text.lines() {
        // Indented lines belong to a nested field.
        if let Some(name) = line.trim().strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            inside = name.trim() == section;
        } else if let Some((name, value)) =
            line.split_once('=').filter(|_| inside && !line.starts_with([' ', '\t', '#', ';']))
        {
            fields.insert(name.trim().to_owned(), Secret::new(value.trim()));
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_that_need_another_program_are_told_from_those_with_keys() {
        let way = |names: &[&str]| {
            way_of_others(&names.iter().map(|name| ((*name).to_owned(), Secret::new("x"))).collect::<HashMap<_, _>>())
        };
        let keys = ["aws_access_key_id", "aws_secret_access_key"];
        assert_eq!(way(&keys), None);
        assert_eq!(way(&["region"]), None);
        assert_eq!(way(&["sso_session", "region"]), Some("sso_session"));
        assert_eq!(way(&["credential_process"]), Some("credential_process"));
        assert_eq!(way(&[keys[0], keys[1], "credential_process"]), None, "keys come first");
        assert_eq!(way(&[keys[0], keys[1], "role_arn"]), Some("role_arn"), "they are the role's, not the user's");
    }

    #[test]
    fn sections_of_profiles() {
        let text = "[default]\nregion = eu-west-1\ns3 =\n  endpoint_url = x\n# a = b\n[profile lab]\nregion=us-east-2\naws_access_key_id = AK=1\n";
        let field = |section: &str, name: &str| {
            section_of(text, section).get(name).map(|value| value.reveal().to_owned()).unwrap_or_default()
        };
        assert_eq!(field("default", "region"), "eu-west-1");
        assert_eq!(field("default", "endpoint_url"), "");
        assert_eq!(field("profile lab", "aws_access_key_id"), "AK=1");
        assert_eq!(field("lab", "region"), "");
        assert!(!format!("{:?}", section_of(text, "profile lab")).contains("AK"), "secrets are not printed");
    }
}
