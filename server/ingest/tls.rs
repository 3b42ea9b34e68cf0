//! Reads the files of TLS: the server's certificate and key, and who may sign its clients'.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::auth::AuthConfig;

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be used.
    #[error("{file}: {why}")]
    File {
        /// Which file.
        file: String,
        /// What is wrong with it.
        why: String,
    },
    /// A key is set that does nothing without another.
    #[error("{set} is set without {missing}: there would be no TLS; set {missing} as well")]
    Incomplete {
        /// The key that is set.
        set: &'static str,
        /// The key that it needs.
        missing: &'static str,
    },
    /// Certificate and key do not fit, or the authorities cannot be used.
    #[error("the TLS files do not fit together: {0}")]
    Unfit(String),
}

/// Reads the TLS files, if there are any. `protocols` are offered to the client, the best first.
///
/// # Errors
/// When a file cannot be read or the files do not fit together.
pub fn read(config: &AuthConfig) -> Result<Option<Arc<ServerConfig>>, TlsError> {
    let missing = match (
        config.tls_certificate_file.is_empty(),
        config.tls_key_file.is_empty(),
    ) {
        (true, true) if config.tls_client_ca_file.is_empty() => return Ok(None),
        (true, true) => Some(("auth.tls_client_ca_file", "auth.tls_certificate_file")),
        (true, false) => Some(("auth.tls_key_file", "auth.tls_certificate_file")),
        (false, true) => Some(("auth.tls_certificate_file", "auth.tls_key_file")),
        (false, false) => None,
    };
    if let Some((set, missing)) = missing {
        return Err(TlsError::Incomplete { set, missing });
    }
    let unfit = |error: &dyn std::fmt::Display| TlsError::Unfit(error.to_string());
    let certificates = certificates(&config.tls_certificate_file)?;
    let key = PrivateKeyDer::from_pem_file(Path::new(&config.tls_key_file))
        .map_err(|error| file_error(&config.tls_key_file, &error))?;
    let builder = ServerConfig::builder();
    let builder = if config.tls_client_ca_file.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for certificate in self::certificates(&config.tls_client_ca_file)? {
            roots.add(certificate).map_err(|error| unfit(&error))?;
        }
        let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
        builder.with_client_cert_verifier(verifier.map_err(|error| unfit(&error))?)
    };
    let mut tls = builder
        .with_single_cert(certificates, key)
        .map_err(|error| unfit(&error))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(Arc::new(tls)))
}

pub(super) fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(Path::new(file))
        .and_then(Iterator::collect)
        .map_err(|error| file_error(file, &error))?;
    if certificates.is_empty() {
        let why = "no certificate in it".to_owned();
        let file = file.to_owned();
        return Err(TlsError::File { file, why });
    }
    Ok(certificates)
}

fn file_error(file: &str, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::File {
        file: file.to_owned(),
        why: error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A certificate for localhost and its key, made for these tests and good for nothing else.
    pub(in crate::ingest) fn config() -> AuthConfig {
        let file = |name: &str| format!("{}/ingest/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
        AuthConfig {
            tls_certificate_file: file("certificate.pem"),
            tls_key_file: file("key.pem"),
            ..AuthConfig::default()
        }
    }

    #[test]
    fn a_tls_file_that_cannot_be_used_is_named() {
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let good = config();
        for (certificate, key) in [
            ("/nowhere.pem", good.tls_key_file.as_str()),
            (good.tls_certificate_file.as_str(), "/nowhere.pem"),
            (good.tls_key_file.as_str(), good.tls_key_file.as_str()),
        ] {
            let bad = AuthConfig {
                tls_certificate_file: certificate.to_owned(),
                tls_key_file: key.to_owned(),
                ..AuthConfig::default()
            };
            let error = read(&bad).expect_err("unusable").to_string();
            assert!(error.contains(".pem"), "{error}");
        }
        assert!(read(&AuthConfig::default()).unwrap().is_none());
    }

    #[test]
    fn a_tls_key_that_would_do_nothing_is_refused_with_the_key_it_needs() {
        for (certificate, key, authority, words) in [
            (
                "",
                "",
                "ca.pem",
                ["tls_client_ca_file", "tls_certificate_file"],
            ),
            ("c.pem", "", "", ["tls_certificate_file", "tls_key_file"]),
            ("", "k.pem", "", ["tls_key_file", "tls_certificate_file"]),
        ] {
            let config = AuthConfig {
                tls_certificate_file: certificate.to_owned(),
                tls_key_file: key.to_owned(),
                tls_client_ca_file: authority.to_owned(),
                ..AuthConfig::default()
            };
            let error = read(&config).expect_err("no TLS").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }
}
