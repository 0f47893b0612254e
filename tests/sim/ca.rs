//! A certificate authority for the servers of tests.

use std::sync::Arc;

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// A certificate authority.
pub(crate) struct Ca(CertifiedIssuer<'static, KeyPair>);

impl Ca {
    pub(crate) fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Ok(Self(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?))
    }

    /// Issues a certificate for these names or addresses; returns it and its key as PEM.
    pub(crate) fn issue(&self, names: &[&str]) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Ok((CertificateParams::new(names)?.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }

    /// Issues a client's certificate for a user in a group, as Kubernetes reads it; returns it and its key as PEM.
    #[allow(dead_code, reason = "only `make e2e` has kubelets that ask who their client is")]
    pub(crate) fn issue_to(&self, user: &str, group: &str) -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, group);
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
        Ok((params.signed_by(&key, &self.0)?.pem(), key.serialize_pem()))
    }

    /// Returns its own certificate as PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Returns its own certificate.
    pub(crate) fn der(&self) -> CertificateDer<'static> {
        self.0.der().clone()
    }

    /// Returns the TLS side of a server at 127.0.0.1.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor> {
        let (certificate, key) = self.issue(&["127.0.0.1"])?;
        let certificate = CertificateDer::from_pem_slice(certificate.as_bytes())?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
