//! Reads the files of TLS: a listener's certificate and key and who may sign its clients'; and the same
//! of who connects. What cannot be used is named by file and by key of the config.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::reloaded::{Reloaded, Unusable};

/// A file, and the key of the config that names it; an empty path is none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Setting {
    /// `auth.tls_key_file`.
    pub key: &'static str,
    /// Where it lies.
    pub path: PathBuf,
}

/// What a listener has of TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerFiles {
    /// Its certificate chain.
    pub certificate: Setting,
    /// The key of that certificate.
    pub key: Setting,
    /// Who signs the certificates of its clients; set, they must show one.
    pub client_authorities: Setting,
}

/// What a client has of TLS.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientFiles {
    /// Who signs the server's certificate; none means whom the system trusts.
    pub authorities: Setting,
    /// Its own certificate chain, for a server that wants one.
    pub certificate: Setting,
    /// The key of that certificate.
    pub key: Setting,
}

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be used.
    #[error("{key}: {path}: {why}")]
    File {
        /// The key that names it.
        key: &'static str,
        /// Which file.
        path: PathBuf,
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
    /// Nobody is trusted.
    #[error("the system has no authorities that could be trusted: set {key}; {why}")]
    NoAuthorities {
        /// The key that would name some.
        key: &'static str,
        /// What was found instead.
        why: String,
    },
    /// What TLS itself cannot do.
    #[error("TLS cannot be used: {0}")]
    Unusable(String),
}

impl Setting {
    /// The file that this key names.
    pub fn new(key: &'static str, path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        Self { key, path }
    }

    /// Whether a file is named.
    pub fn is_set(&self) -> bool {
        !self.path.as_os_str().is_empty()
    }

    /// The certificates in the file, at least one.
    ///
    /// # Errors
    /// When it cannot be read or holds none.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let certificates: Vec<_> = CertificateDer::pem_file_iter(&self.path)
            .and_then(Iterator::collect)
            .map_err(|error| self.error(&error))?;
        if certificates.is_empty() {
            return Err(self.error(&"no certificate in it"));
        }
        Ok(certificates)
    }

    fn authorities(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates()? {
            roots.add(certificate).map_err(|error| self.error(&error))?;
        }
        Ok(roots)
    }

    fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        PrivateKeyDer::from_pem_file(&self.path).map_err(|error| self.error(&error))
    }

    fn error(&self, why: &dyn std::fmt::Display) -> TlsError {
        TlsError::File {
            key: self.key,
            path: self.path.clone(),
            why: why.to_string(),
        }
    }
}

impl ServerFiles {
    /// Reads them; nothing when none is set.
    ///
    /// # Errors
    /// When a file cannot be read, they do not fit together, or one lacks another.
    pub fn read(&self) -> Result<Option<ServerConfig>, TlsError> {
        let Some(identity) = identity(&self.certificate, &self.key)? else {
            if self.client_authorities.is_set() {
                return Err(TlsError::Incomplete {
                    set: self.client_authorities.key,
                    missing: self.certificate.key,
                });
            }
            return Ok(None);
        };
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unusable(error.to_string()))?;
        let builder = if self.client_authorities.is_set() {
            let roots = Arc::new(self.client_authorities.authorities()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
            let verifier = verifier.map_err(|error| self.client_authorities.error(&error))?;
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let mut tls = builder
            .with_single_cert(identity.0, identity.1)
            .map_err(|error| unfit(&self.certificate, &self.key, &error))?;
        // The best first.
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Some(tls))
    }

    /// Reads them now, and again when they change; `what` names them in the log.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn reloaded(
        self,
        what: &'static str,
    ) -> Result<Option<Arc<Reloaded<ServerConfig>>>, Unusable> {
        if self.read()?.is_none() {
            return Ok(None);
        }
        let files = [&self.certificate, &self.key, &self.client_authorities];
        let files = files.map(|it| it.path.clone());
        let make = move || {
            let tls = self.read()?;
            Ok(tls.expect("the same settings gave one before"))
        };
        Reloaded::new(what, files, make).map(|tls| Some(Arc::new(tls)))
    }
}

impl ClientFiles {
    /// Reads them.
    ///
    /// # Errors
    /// When a file cannot be read, they do not fit together, or one lacks another.
    pub fn read(&self) -> Result<ClientConfig, TlsError> {
        let roots = if self.authorities.is_set() {
            self.authorities.authorities()?
        } else {
            self.of_the_system()?
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::Unusable(error.to_string()))?
            .with_root_certificates(roots);
        match identity(&self.certificate, &self.key)? {
            None => Ok(builder.with_no_client_auth()),
            Some((certificates, key)) => builder
                .with_client_auth_cert(certificates, key)
                .map_err(|error| unfit(&self.certificate, &self.key, &error)),
        }
    }

    /// The first setting that names a file.
    pub fn first_set(&self) -> Option<&Setting> {
        let mut settings = [&self.authorities, &self.certificate, &self.key].into_iter();
        settings.find(|it| it.is_set())
    }

    /// Every file that there may be.
    pub fn paths(&self) -> [PathBuf; 3] {
        [&self.authorities, &self.certificate, &self.key].map(|it| it.path.clone())
    }

    fn of_the_system(&self) -> Result<RootCertStore, TlsError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, _ignored) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let first = found.errors.first().map(ToString::to_string);
            return Err(TlsError::NoAuthorities {
                key: self.authorities.key,
                why: first.unwrap_or_else(|| "there is none".to_owned()),
            });
        }
        Ok(roots)
    }
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// A certificate with its key; none when neither is set.
fn identity(certificate: &Setting, key: &Setting) -> Result<Option<Identity>, TlsError> {
    let (set, missing) = match (certificate.is_set(), key.is_set()) {
        (false, false) => return Ok(None),
        (true, true) => return Ok(Some((certificate.certificates()?, key.private_key()?))),
        (true, false) => (certificate.key, key.key),
        (false, true) => (key.key, certificate.key),
    };
    Err(TlsError::Incomplete { set, missing })
}

fn unfit(certificate: &Setting, key: &Setting, error: &rustls::Error) -> TlsError {
    let with = format!("with {} ({})", certificate.key, certificate.path.display());
    key.error(&format!("{with}: {error}"))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A certificate for localhost and its key, made for these tests and good for nothing else.
    pub(crate) fn files() -> ServerFiles {
        let file = |name: &str| format!("{}/testdata/{name}", env!("CARGO_MANIFEST_DIR"));
        ServerFiles {
            certificate: Setting::new("x.certificate_file", file("certificate.pem")),
            key: Setting::new("x.key_file", file("key.pem")),
            client_authorities: Setting::new("x.client_ca_file", ""),
        }
    }

    #[test]
    fn a_tls_file_that_cannot_be_used_is_named_with_its_key() {
        let check = |change: fn(&mut ServerFiles), words: [&str; 2]| {
            let mut bad = files();
            change(&mut bad);
            let error = bad.read().expect_err("unusable").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        check(
            |it| it.certificate.path = "/nowhere.pem".into(),
            ["x.certificate_file", "/nowhere.pem"],
        );
        check(
            |it| it.key.path = "/nowhere.pem".into(),
            ["x.key_file", "/nowhere.pem"],
        );
        check(
            |it| it.certificate.path = it.key.path.clone(),
            ["x.certificate_file", "no certificate"],
        );
        check(
            |it| it.client_authorities.path = it.key.path.clone(),
            ["x.client_ca_file", "key.pem"],
        );
        assert!(files().read().expect("usable").is_some());
        assert!(ServerFiles::default().read().expect("none").is_none());
    }

    #[test]
    fn a_tls_key_that_would_do_nothing_is_refused_with_the_key_it_needs() {
        for (set, words) in [
            (
                [false, false, true],
                ["x.client_ca_file", "x.certificate_file"],
            ),
            ([true, false, false], ["x.certificate_file", "x.key_file"]),
            ([false, true, false], ["x.key_file", "x.certificate_file"]),
        ] {
            let mut some = files();
            some.client_authorities.path = some.certificate.path.clone();
            let settings = [
                &mut some.certificate,
                &mut some.key,
                &mut some.client_authorities,
            ];
            for (setting, is_set) in settings.into_iter().zip(set) {
                if !is_set {
                    setting.path = PathBuf::new();
                }
            }
            let error = some.read().expect_err("no TLS").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn a_client_trusts_the_authorities_it_is_given_and_needs_a_key_to_its_certificate() {
        let server = files();
        let mut client = ClientFiles {
            authorities: Setting::new("y.ca_file", server.certificate.path.clone()),
            certificate: Setting::new("y.certificate_file", server.certificate.path),
            key: Setting::new("y.key_file", server.key.path),
        };
        client.read().expect("usable");
        client.key.path = PathBuf::new();
        let error = client.read().expect_err("no key").to_string();
        assert!(error.contains("y.key_file"), "{error}");
        client.authorities.path = "/nowhere.pem".into();
        let error = client.read().expect_err("no such file").to_string();
        assert!(
            error.contains("y.ca_file") && error.contains("/nowhere.pem"),
            "{error}"
        );
    }
}
