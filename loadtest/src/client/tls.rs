//! Connections. The rule: certificates are always checked; a private authority is named, never waved through.

use std::path::Path;
use std::sync::Arc;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Why no connections can be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of authorities can't be read.
    #[error("--ca {path}: {source}; give a file of certificates in PEM")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: rustls::pki_types::pem::Error,
    },
    /// The file holds no certificate.
    #[error("--ca {path} holds no certificate; give a file of certificates in PEM")]
    Empty {
        /// The file.
        path: String,
    },
    /// A certificate can't be an authority, or the library refuses its settings.
    #[error("tls: {0}; check the certificate given with --ca")]
    Tls(#[from] rustls::Error),
}

/// Whose certificates are believed, and the settings that follow.
#[derive(Clone, Debug)]
pub struct Tls {
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Mozilla's authorities, and those of a PEM file.
    ///
    /// # Errors
    /// The file can't be read or holds no authority.
    pub fn new(ca: Option<&Path>) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::from_iter(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        if let Some(path) = ca {
            let shown = path.display().to_string();
            let wrong = |source| TlsError::File { path: shown.clone(), source };
            let mut found = 0;
            for certificate in CertificateDer::pem_file_iter(path).map_err(wrong)? {
                roots.add(certificate.map_err(wrong)?)?;
                found += 1;
            }
            if found == 0 {
                return Err(TlsError::Empty { path: shown });
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { config: Arc::new(config) })
    }

    /// A connector for addresses with and without encryption. HTTP/1.1 alone, as the SDKs speak by default.
    pub(super) fn connector(&self) -> HttpsConnector<HttpConnector> {
        let mut plain = HttpConnector::new();
        plain.set_nodelay(true);
        plain.enforce_http(false);
        HttpsConnectorBuilder::new()
            .with_tls_config((*self.config).clone())
            .https_or_http()
            .enable_http1()
            .wrap_connector(plain)
    }
}
