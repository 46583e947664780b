//! The TLS settings of the sender.
//!
//! Place in the path: used once, when a `Sender` is built.
//! Invariants: certificates and host names are always verified; TLS 1.2 or newer; the provider is named, never taken from
//! the process, so that the client builds on any machine and beside any other crate.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};

use super::SenderError;

/// The system's root certificates, or webpki's where the system has none, and the extra ones.
pub(super) fn config(extra_roots: &[CertificateDer<'static>]) -> Result<ClientConfig, SenderError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    let (added, _unusable) = roots.add_parsable_certificates(system.certs);
    if added == 0 {
        tracing::info!("the system has no root certificates; those of webpki are used");
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    for root in extra_roots {
        roots.add(root.clone()).map_err(SenderError::ExtraRoot)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(SenderError::Tls)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
