//! The credentials that a vendor's machine gives to programs on it, and those that a token service exchanges for a token. Requests without a required
//! header are refused.

use crate::http::{Answer, Head};
use crate::text::json_text;

/// What is never in a message of a client.
const SECRET: &str = "secret-of-the-machine";
const ROLE: &str = "role-of-the-machine";
const UNTIL: &str = "2099-01-01T00:00:00Z";

/// The answer to a request for this path below `/machine/`.
pub(crate) fn answer(head: &Head, path: &str) -> Answer {
    let json = |fields: &[(&str, &str)]| {
        let fields: Vec<String> =
            fields.iter().map(|(name, value)| format!("\"{name}\": {}", json_text(value))).collect();
        Answer::text(200, "application/json", format!("{{{}}}", fields.join(", ")))
    };
    let keys =
        || json(&[("AccessKeyId", "AKMACHINE"), ("SecretAccessKey", SECRET), ("Token", SECRET), ("Expiration", UNTIL)]);
    let roles = "latest/meta-data/iam/security-credentials/";
    let has = |name: &str, value: &str| head.header(name) == Some(value);
    let answer = match (head.method.as_str(), path) {
        ("PUT", "latest/api/token") if head.header("x-aws-ec2-metadata-token-ttl-seconds").is_some() => {
            Answer::text(200, "text/plain", SECRET)
        }
        ("GET", _) if path == roles && has("x-aws-ec2-metadata-token", SECRET) => Answer::text(200, "text/plain", ROLE),
        ("GET", _) if path.strip_prefix(roles) == Some(ROLE) && has("x-aws-ec2-metadata-token", SECRET) => keys(),
        ("GET", "container") if head.header("authorization").is_some() => keys(),
        ("POST", "sts") => Answer::xml(&format!(
            "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKROLE</AccessKeyId>\
             <SecretAccessKey>{SECRET}</SecretAccessKey><SessionToken>{SECRET}</SessionToken><Expiration>{UNTIL}</Expiration>\
             </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
        )),
        ("GET", "computeMetadata/v1/instance/service-accounts/default/token") if has("metadata-flavor", "Google") => {
            Answer::text(200, "application/json", format!("{{\"access_token\": \"{SECRET}\", \"expires_in\": 3600}}"))
        }
        ("GET", "azure") if has("metadata", "true") => {
            json(&[("access_token", SECRET), ("expires_on", "4070908800"), ("token_type", "Bearer")])
        }
        _ => Answer::text(404, "text/plain", "This machine has no such identity.\n"),
    };
    answer.with("Cache-Control", "no-store")
}
