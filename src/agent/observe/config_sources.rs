//! Where the kubelet's configuration is read.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::kubelet::{ConfigFiles, KubeletConfig, Overrides, parse_configz};
use crate::pod_source::KubeletPort;

/// Maximum size of a response. Real ones have a few KiB.
const CONFIGZ_LIMIT: usize = 1 << 20;

/// Where the kubelet's configuration is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ConfigSource {
    /// As `File`; if the files cannot be read, as `Configz`.
    #[default]
    Auto,
    /// Its files and its command line.
    File,
    /// The kubelet's HTTPS port.
    Configz,
    /// Only the overrides.
    None,
}

/// The sources of the kubelet's configuration.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// Which source to use.
    pub source: ConfigSource,
    /// Its files.
    pub files: ConfigFiles,
    /// The kubelet itself.
    pub port: KubeletPort,
    /// Values that override the sources.
    pub overrides: Overrides,
}

/// A configuration, and the invalid keys in it.
pub(super) type ReadConfig = (KubeletConfig, Vec<String>);

impl ConfigSources {
    /// Returns true if there is any source.
    #[must_use]
    pub fn is_configured(&self) -> bool {
        self.source != ConfigSource::None
    }

    /// Returns true if only the kubelet itself can be the source, which requires the credentials for a
    /// cluster.
    #[must_use]
    pub fn needs_kubelet(&self) -> bool {
        self.uses_kubelet() && self.read_files().is_err()
    }

    /// Reads the configuration without the kubelet: from its files, or from the overrides alone. Otherwise
    /// returns why its files cannot be read; `None` if they are not to be.
    pub(super) fn read_files(&self) -> Result<ReadConfig, Option<String>> {
        match self.source {
            ConfigSource::Auto | ConfigSource::File => self.files.read().map_err(Some),
            ConfigSource::Configz => Err(None),
            ConfigSource::None => match self.overrides.as_config() {
                Some(config) => Ok((config, Vec::new())),
                None => Err(None),
            },
        }
    }

    /// Returns the files, if they are read at all.
    pub(crate) fn used_files(&self) -> Option<&ConfigFiles> {
        matches!(self.source, ConfigSource::Auto | ConfigSource::File).then_some(&self.files)
    }

    pub(super) const fn uses_kubelet(&self) -> bool {
        matches!(self.source, ConfigSource::Auto | ConfigSource::Configz)
    }

    pub(super) async fn request(&self, cluster: &Cluster) -> Result<ReadConfig, String> {
        let https = self.port.connect(cluster).await?;
        let response = https.get("/configz", CONFIGZ_LIMIT).await?;
        parse_configz(&response)
            .map_err(|error| format!("the kubelet's response to GET /configz cannot be parsed: {error}"))
    }
}
