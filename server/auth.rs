//! Who may do what: roles, token files bound to clusters, and when a listener refuses to start.
//!
//! A token file holds one token on its first line. Without any token file every role is open, which
//! is why a listener that others can reach then refuses to start. With one, a role without a token
//! file is closed: whoever guards reading does not want commands from everyone. A file that changes is read
//! again; one that cannot be used then leaves what was good good.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gpufleet_program::listen::Tls;
use gpufleet_program::reloaded::{Reloaded, words};
use gpufleet_program::tls::{ServerFiles, Setting};
use gpufleet_program::{section, token};
use serde::{Deserialize, Serialize};

use crate::money::budgets;

pub mod person;

/// Most token files one server reads: each is compared on every request.
pub const MAX_TOKENS: usize = 256;

/// Shortest token accepted, in bytes; shorter ones can be guessed.
pub const MIN_TOKEN_BYTES: usize = 16;

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Send data.
    Ingest,
    /// Look at pages and read the API.
    Read,
    /// Give commands to agents.
    Operate,
}

/// One token file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenFile {
    /// What its token allows.
    pub role: Role,
    /// Path of the file with the token on its first line.
    pub file: String,
    /// The only cluster it is good for; without it, any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

section! {
    /// Who may do what, and TLS. Loopback needs neither.
    pub struct AuthConfig {
        /// Token files: [{ role = "ingest", file = "/etc/gpufleet/ingest.token", cluster = "prod" }].
        /// Roles: ingest, read, operate. Without any token file everything is open;
        /// with one, a role without a token file is closed.
        pub tokens: Vec<TokenFile> = Vec::new(),
        /// PEM file with the server's certificate chain; empty means no TLS.
        pub tls_certificate_file: String = String::new(),
        /// PEM file with the certificate's private key.
        pub tls_key_file: String = String::new(),
        /// PEM file with the authorities of client certificates; set, clients must show one (mTLS).
        pub tls_client_ca_file: String = String::new(),
        /// Header in which a trusted proxy names the person who asks, as in x-goog-authenticated-user-email;
        /// it is written down with every change made through pages and API. The proxy has to set it, not to add to
        /// it: of several values none is believed.
        pub user_header: String = String::new(),
        /// Addresses and networks of proxies whose user_header is believed: ["10.0.0.0/8"].
        pub trusted_proxies: Vec<String> = Vec::new(),
        /// Listen on an address that others reach without TLS and tokens. Only behind something
        /// that has both.
        pub allow_insecure: bool = false,
    }
}

impl AuthConfig {
    /// The files of TLS.
    pub fn tls(&self) -> ServerFiles {
        ServerFiles {
            certificate: Setting::new("auth.tls_certificate_file", &self.tls_certificate_file),
            key: Setting::new("auth.tls_key_file", &self.tls_key_file),
            client_authorities: Setting::new("auth.tls_client_ca_file", &self.tls_client_ca_file),
        }
    }
}

/// Why access could not be set up, or was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// A token file that cannot be used.
    #[error("token file {file}: {why}")]
    TokenFile {
        /// Which file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// TLS files that cannot be used.
    #[error("{0}")]
    Tls(String),
    /// More token files than are compared on a request.
    #[error("{0} token files, at most {MAX_TOKENS} are read")]
    TooManyTokens(usize),
    /// A listener that others reach, without protection.
    #[error(
        "{what} listens on {address}, which others reach, without {lacks}: set auth.tls_certificate_file, auth.tls_key_file and auth.tokens, or listen on 127.0.0.1, or set auth.allow_insecure = true"
    )]
    Insecure {
        /// Which listener.
        what: &'static str,
        /// On which address.
        address: SocketAddr,
        /// What is missing.
        lacks: &'static str,
    },
    /// No token where one is needed.
    #[error("a bearer token with role {} is needed", .0.name())]
    Missing(Role),
    /// No token file for a role while other roles have some.
    #[error("role {name} is closed, because other roles have token files and it has none: add a token file with role = \"{name}\" to auth.tokens", name = .0.name())]
    Closed(Role),
    /// A token that is not known, or not for this role.
    #[error("this token is not known or does not allow role {}", .0.name())]
    Refused(Role),
}

/// What a request may do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Grant {
    /// The only cluster it may touch; none means any.
    pub cluster: Option<Arc<str>>,
}

impl Grant {
    /// Whether it may touch this cluster. Who may sees what its teams spend there, so that budgets that name it are its
    /// as well; those of all clusters together are for who may touch all.
    pub fn may_see(&self, cluster: &str) -> bool {
        let cluster = budgets::cluster_of(cluster).unwrap_or(cluster);
        self.cluster.as_deref().is_none_or(|only| only == cluster)
    }
}

/// All tokens, and the TLS of every door. Their files are read again when one of them changes; while the
/// new ones cannot be used the old stay good.
#[derive(Default)]
pub struct Access {
    /// None without any token file.
    tokens: Option<Reloaded<Vec<Token>>>,
    tls: Tls,
}

struct Token {
    role: Role,
    secret: Vec<u8>,
    cluster: Option<Arc<str>>,
}

impl Role {
    /// The name in configuration and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Read => "read",
            Self::Operate => "operate",
        }
    }
}

impl Access {
    /// Reads the token files and those of TLS.
    ///
    /// # Errors
    /// When a file cannot be read, a token is too short, or the files of TLS do not fit together.
    pub fn load(config: &AuthConfig) -> Result<Self, AuthError> {
        if config.tokens.len() > MAX_TOKENS {
            return Err(AuthError::TooManyTokens(config.tokens.len()));
        }
        let tls = config.tls().reloaded("the server's TLS files (auth.tls_…)");
        let tls = tls.map_err(|error| AuthError::Tls(words(error.as_ref())))?;
        if config.tokens.is_empty() {
            return Ok(Self { tokens: None, tls });
        }
        // Once by itself, for an error of our own.
        read_tokens(&config.tokens)?;
        let files: Vec<PathBuf> = config.tokens.iter().map(|it| (&it.file).into()).collect();
        let entries = config.tokens.clone();
        let make = move || Ok(read_tokens(&entries)?);
        let tokens = Reloaded::new("the token files (auth.tokens)", files, make);
        let tokens = tokens.map_err(|error| AuthError::TokenFile {
            file: "auth.tokens".to_owned(),
            why: error.to_string(),
        })?;
        Ok(Self {
            tokens: Some(tokens),
            tls,
        })
    }

    /// The TLS of every door; none without.
    pub fn tls(&self) -> Tls {
        self.tls.clone()
    }

    /// Whether everyone may do everything: there is no token file at all.
    pub const fn is_open(&self) -> bool {
        self.tokens.is_none()
    }

    /// Whether any token file exists for this role.
    pub fn guards(&self, role: Role) -> bool {
        let tokens = self.tokens.as_ref().map(Reloaded::get);
        tokens.is_some_and(|it| it.iter().any(|token| token.role == role))
    }

    /// Which files cannot be used as they are, while those of before are, and why.
    pub fn refused(&self) -> Vec<String> {
        let tokens = self.tokens.as_ref().and_then(Reloaded::refused);
        let tls = self.tls.as_deref().and_then(Reloaded::refused);
        let told = [("token files", tokens), ("TLS files", tls)];
        let told = told
            .into_iter()
            .filter_map(|(what, why)| Some((what, why?)));
        told.map(|(what, why)| {
            format!("the {what} have changed and cannot be used, those of before stay good: {why}")
        })
        .collect()
    }

    /// Checks the value of an `authorization` header for a role.
    ///
    /// # Errors
    /// When any token file exists and the token is absent, unknown or of another role, or the role
    /// has no token file.
    pub fn check(&self, role: Role, authorization: Option<&[u8]>) -> Result<Grant, AuthError> {
        let Some(tokens) = self.tokens.as_ref().map(Reloaded::get) else {
            return Ok(Grant::default());
        };
        if tokens.iter().all(|token| token.role != role) {
            return Err(AuthError::Closed(role));
        }
        let given = authorization
            .and_then(token::shown)
            .ok_or(AuthError::Missing(role))?;
        // Every token is compared, whichever fits, so that time says nothing of which came close.
        let mut found = None;
        for known in tokens.iter() {
            if token::equals(&known.secret, given) && known.role == role {
                found = Some(known.cluster.clone());
            }
        }
        match found {
            Some(cluster) => Ok(Grant { cluster }),
            None => Err(AuthError::Refused(role)),
        }
    }

    /// Refuses a listener that others reach without TLS and without a token for its role.
    ///
    /// # Errors
    /// Says which listener, which address and what is missing.
    pub fn permit(
        &self,
        config: &AuthConfig,
        what: &'static str,
        address: SocketAddr,
        role: Role,
    ) -> Result<(), AuthError> {
        if config.allow_insecure || address.ip().is_loopback() {
            return Ok(());
        }
        let tls = !config.tls_certificate_file.is_empty() && !config.tls_key_file.is_empty();
        let lacks = match (tls, self.guards(role)) {
            (true, true) => return Ok(()),
            (false, true) => "TLS",
            (true, false) => "a token file for its role",
            (false, false) => "TLS and token files",
        };
        Err(AuthError::Insecure {
            what,
            address,
            lacks,
        })
    }
}

fn read_tokens(entries: &[TokenFile]) -> Result<Vec<Token>, AuthError> {
    entries.iter().map(read_token).collect()
}

fn read_token(entry: &TokenFile) -> Result<Token, AuthError> {
    let refuse = |why: String| AuthError::TokenFile {
        file: entry.file.clone(),
        why,
    };
    let text = std::fs::read_to_string(Path::new(&entry.file))
        .map_err(|error| refuse(error.to_string()))?;
    let secret = text.lines().next().unwrap_or_default().trim();
    if secret.len() < MIN_TOKEN_BYTES {
        return Err(refuse(format!(
            "its first line has {} bytes, a token has at least {MIN_TOKEN_BYTES}",
            secret.len()
        )));
    }
    Ok(Token {
        role: entry.role,
        secret: secret.as_bytes().to_vec(),
        cluster: entry.cluster.as_deref().map(Arc::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(entries: &[(Role, &str, Option<&str>)]) -> Access {
        let folder = tempfile::tempdir().unwrap();
        let tokens = entries
            .iter()
            .enumerate()
            .map(|(index, (role, secret, cluster))| {
                let file = folder.path().join(index.to_string());
                std::fs::write(&file, format!("{secret}\n")).unwrap();
                TokenFile {
                    role: *role,
                    file: file.display().to_string(),
                    cluster: cluster.map(str::to_owned),
                }
            })
            .collect();
        Access::load(&AuthConfig {
            tokens,
            ..AuthConfig::default()
        })
        .unwrap()
    }

    #[test]
    fn a_token_opens_its_role_in_its_cluster_and_nothing_else() {
        let access = access(&[
            (Role::Ingest, "ingest-token-of-prod", Some("prod")),
            (Role::Read, "read-token-for-all", None),
        ]);
        let check = |role, header: Option<&str>| access.check(role, header.map(str::as_bytes));
        assert_eq!(
            check(Role::Ingest, Some("Bearer ingest-token-of-prod")).unwrap(),
            Grant {
                cluster: Some("prod".into())
            }
        );
        assert_eq!(
            check(Role::Read, Some("Bearer ingest-token-of-prod")),
            Err(AuthError::Refused(Role::Read))
        );
        assert_eq!(
            check(Role::Ingest, Some("Bearer ingest-token-of-proX")),
            Err(AuthError::Refused(Role::Ingest))
        );
        assert_eq!(
            check(Role::Ingest, Some("Bearer ")),
            Err(AuthError::Refused(Role::Ingest))
        );
        assert_eq!(
            check(Role::Ingest, None),
            Err(AuthError::Missing(Role::Ingest))
        );
        for header in [None, Some("Bearer read-token-for-all")] {
            assert_eq!(
                check(Role::Operate, header),
                Err(AuthError::Closed(Role::Operate)),
                "no token file for it"
            );
        }
        let closed = AuthError::Closed(Role::Operate).to_string();
        assert!(closed.contains("role = \"operate\""), "{closed}");
        let open = Access::default().check(Role::Operate, None);
        assert_eq!(open, Ok(Grant::default()), "no token file at all");
    }

    #[test]
    fn a_token_that_is_rotated_is_good_at_once_and_a_bad_new_file_keeps_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        let write = |text: &str| {
            let next = folder.path().join("next");
            std::fs::write(&next, text).unwrap();
            std::fs::rename(&next, &file).unwrap();
        };
        write("the-first-token-of-all");
        let entry = TokenFile {
            role: Role::Ingest,
            file: file.display().to_string(),
            cluster: None,
        };
        let config = AuthConfig {
            tokens: vec![entry],
            ..AuthConfig::default()
        };
        let access = Access::load(&config).unwrap();
        let opens = |token: &str| {
            let shown = format!("Bearer {token}");
            access.check(Role::Ingest, Some(shown.as_bytes())).is_ok()
        };
        assert!(opens("the-first-token-of-all"));
        write("the-second-token-of-all");
        assert!(opens("the-second-token-of-all") && !opens("the-first-token-of-all"));
        assert_eq!(access.refused(), Vec::<String>::new());
        write("short");
        assert!(opens("the-second-token-of-all") && !opens("short"));
        let [why] = &access.refused()[..] else {
            panic!("it is told");
        };
        assert!(why.contains(&file.display().to_string()), "{why}");
    }

    #[test]
    fn a_certificate_that_was_rotated_badly_is_told_and_the_one_before_stays_in_use() {
        let folder = tempfile::tempdir().unwrap();
        let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../program/testdata");
        let of = |name: &str| std::fs::read_to_string(format!("{own}/{name}.pem")).unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let config = AuthConfig {
            tls_certificate_file: file("cert", &of("certificate")),
            tls_key_file: file("key", &of("key")),
            ..AuthConfig::default()
        };
        let access = Access::load(&config).unwrap();
        assert_eq!(access.refused(), Vec::<String>::new());
        let before = access.tls().expect("it has TLS").get();
        file("cert", "not a certificate");
        let [why] = &access.refused()[..] else {
            panic!("it is told");
        };
        assert!(why.contains("TLS files") && why.contains("cert"), "{why}");
        assert!(Arc::ptr_eq(&before, &access.tls().unwrap().get()));
        let error = Access::load(&config)
            .err()
            .expect("no start with it")
            .to_string();
        assert!(error.contains("auth.tls_certificate_file"), "{error}");
    }

    #[test]
    fn a_short_or_absent_token_file_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let short = folder.path().join("short");
        std::fs::write(&short, "hunter2\n").unwrap();
        for file in [short, folder.path().join("absent")] {
            let entry = TokenFile {
                role: Role::Read,
                file: file.display().to_string(),
                cluster: None,
            };
            let config = AuthConfig {
                tokens: vec![entry],
                ..AuthConfig::default()
            };
            let error = Access::load(&config).err().unwrap().to_string();
            assert!(error.contains(&file.display().to_string()), "{error}");
        }
    }

    #[test]
    fn an_address_that_others_reach_needs_tls_and_a_token() {
        let guarded = access(&[(Role::Ingest, "a-token-long-enough", None)]);
        let open = Access::default();
        let plain = AuthConfig::default();
        let tls = AuthConfig {
            tls_certificate_file: "cert".to_owned(),
            tls_key_file: "key".to_owned(),
            ..AuthConfig::default()
        };
        let insecure = AuthConfig {
            allow_insecure: true,
            ..AuthConfig::default()
        };
        for (access, config, address, permitted) in [
            (&open, &plain, "127.0.0.1:4317", true),
            (&open, &plain, "0.0.0.0:4317", false),
            (&open, &tls, "0.0.0.0:4317", false),
            (&guarded, &plain, "[::]:4317", false),
            (&guarded, &tls, "[::]:4317", true),
            (&open, &insecure, "0.0.0.0:4317", true),
        ] {
            let address = address.parse().unwrap();
            let outcome = access.permit(config, "OTLP/gRPC", address, Role::Ingest);
            assert_eq!(outcome.is_ok(), permitted, "{address}: {outcome:?}");
        }
    }
}
