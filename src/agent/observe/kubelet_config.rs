//! The kubelet's configuration: its files are read at once, and the kubelet itself responds concurrently with
//! the scans.
//!
//! A kubelet reads its configuration once, when it starts. So it is read once for each kubelet, and later
//! changes of a file are not in effect yet.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::config_sources::{ConfigSources, ReadConfig};
use crate::cluster::Cluster;
use crate::kubelet::{KubeletConfig, KubeletInstance};
use crate::util::backoff::back_off;

/// Initial backoff after a kubelet did not return its configuration.
const RETRY: Duration = Duration::from_secs(1);
/// Maximum of that backoff: a missing permission may be granted at any time.
const RETRY_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(in crate::agent) struct ConfigReader {
    sources: ConfigSources,
    cluster: Option<Cluster>,
    /// The configuration and the kubelet instance it is valid for.
    known: Option<(KubeletInstance, KubeletConfig)>,
    request: ConfigRequest,
    /// Whether a file changed after the kubelet started, so that its policies may be different.
    is_doubtful: bool,
    errors: Vec<String>,
    /// Why this kubelet's configuration cannot be read; that of the previous kubelet may still be used.
    pub(in crate::agent) error: Option<String>,
    /// A file that this process can never read again, if the configuration of this kubelet is unknown. A new
    /// container can read it.
    pub(in crate::agent) replaced: Option<PathBuf>,
}

#[derive(Debug, Default)]
struct ConfigRequest {
    instance: KubeletInstance,
    response: Option<oneshot::Receiver<Result<ReadConfig, String>>>,
    /// The number of consecutive failures, the last one, and when to try again.
    failures: u32,
    failure: Option<String>,
    retry_at: Option<Instant>,
}

impl ConfigRequest {
    fn to(instance: KubeletInstance) -> Self {
        Self { instance, ..Self::default() }
    }
}

impl ConfigReader {
    pub(super) fn new(sources: ConfigSources, cluster: Option<Cluster>) -> Self {
        Self {
            sources,
            cluster: cluster.filter(|cluster| cluster.config().is_some()),
            known: None,
            request: ConfigRequest::default(),
            is_doubtful: false,
            errors: Vec::new(),
            error: None,
            replaced: None,
        }
    }

    /// Returns the configuration, if known. It may be that of the previous kubelet.
    pub(in crate::agent) fn config(&self) -> Option<&KubeletConfig> {
        self.known.as_ref().map(|(_, config)| config)
    }

    /// Returns true if the kubelet runs with it, as far as can be determined.
    pub(super) fn is_certain(&self) -> bool {
        // Overrides are certain.
        let is_overridden = self.sources.overrides.topology_manager_policy.is_some();
        self.known.is_some() && (!self.is_doubtful || is_overridden)
    }

    /// Reads the configuration of this kubelet instance, unless it is known, and returns its errors.
    /// `created`: when the kubelet's socket was created; `None` if changes of files since do not matter.
    pub(in crate::agent) fn read(
        &mut self,
        instance: KubeletInstance,
        created: Option<SystemTime>,
        now: Instant,
    ) -> Vec<String> {
        self.take_response(instance);
        if self.known.as_ref().is_some_and(|(from, _)| *from == instance) {
            return self.errors.clone();
        }
        let file_error = match self.sources.read_files() {
            Ok(read) => {
                let changed = created.and_then(|created| self.sources.used_files()?.changed_since(created));
                self.set(instance, read);
                self.errors.extend(changed.as_deref().map(changed_error));
                self.is_doubtful = changed.is_some();
                if self.is_doubtful {
                    self.forget_managers();
                }
                return self.errors.clone();
            }
            Err(error) => error,
        };
        self.send_request(now);
        self.error = match &self.request.failure {
            Some(failure) => Some(match file_error {
                Some(error) => format!("{error}; requested from the kubelet instead, {failure}"),
                None => failure.clone(),
            }),
            // A response may still solve it.
            None if self.is_requested() => None,
            None if self.sources.uses_kubelet() => Some(file_error.unwrap_or_else(|| {
                "there are no credentials to request the configuration from the kubelet".to_owned()
            })),
            None => file_error,
        };
        self.replaced = self.error.as_ref().and_then(|_| self.sources.used_files()?.replaced());
        let error = self.error.iter();
        error.map(|error| with_consequence(error, self.known.is_some())).collect()
    }

    fn set(&mut self, instance: KubeletInstance, read: ReadConfig) {
        let (mut config, errors) = read;
        self.sources.overrides.apply(&mut config);
        self.known = Some((instance, config));
        (self.errors, self.error, self.replaced) = (errors, None, None);
        self.is_doubtful = false;
        self.request = ConfigRequest::to(instance);
    }

    /// Makes the managers' policies unknown where they are not overridden: a kubelet that runs with `none`
    /// lists no CPUs, which under `static` would mean that it has none to allocate.
    fn forget_managers(&mut self) {
        let Some((_, config)) = &mut self.known else { return };
        config.cpu_manager_policy.clear();
        config.memory_manager_policy.clear();
        self.sources.overrides.apply(config);
    }

    /// Requests the configuration from the kubelet, if that is configured, possible and due.
    fn send_request(&mut self, now: Instant) {
        let is_early = self.request.retry_at.is_some_and(|at| now < at);
        if !self.sources.uses_kubelet() || self.is_requested() || is_early {
            return;
        }
        let Some(cluster) = self.cluster.clone() else { return };
        let (sources, (sender, receiver)) = (self.sources.clone(), oneshot::channel());
        tokio::spawn(async move { sender.send(sources.request(&cluster).await) });
        self.request.response = Some(receiver);
    }

    pub(in crate::agent) fn is_requested(&self) -> bool {
        self.request.response.is_some()
    }

    /// Waits for the response to the request in flight, which the next full scan uses. Without a request it
    /// never completes.
    pub(in crate::agent) async fn received(&mut self) {
        let Some(response) = &mut self.request.response else { return std::future::pending().await };
        match response.await {
            Ok(read) => self.take(read),
            // The task of the request was dropped with its runtime.
            Err(_) => self.request.response = None,
        }
    }

    /// Takes a response that has arrived. One of an earlier kubelet is dropped.
    fn take_response(&mut self, instance: KubeletInstance) {
        if self.request.instance != instance {
            self.request = ConfigRequest::to(instance);
        }
        let response = self.request.response.as_mut().and_then(|response| response.try_recv().ok());
        if let Some(read) = response {
            self.take(read);
        }
    }

    fn take(&mut self, read: Result<ReadConfig, String>) {
        let request = &mut self.request;
        request.response = None;
        match read {
            Ok(read) => self.set(self.request.instance, read),
            Err(failure) => {
                request.failure = Some(failure);
                request.retry_at = Some(Instant::now() + back_off(&mut request.failures, RETRY, RETRY_LIMIT));
            }
        }
    }
}

fn changed_error(file: &Path) -> String {
    format!(
        "{} changed after the kubelet started, so the kubelet may still use the former content; policies already in \
         the object stay until the kubelet restarts",
        file.display()
    )
}

/// Adds the consequence of a configuration that cannot be read. `was_known`: it could be read before.
pub(in crate::agent) fn with_consequence(error: &str, was_known: bool) -> String {
    if was_known {
        format!("{error}; the last one read is still used")
    } else {
        format!("{error}; the policies are unknown and no resources are treated as reserved")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::observe::config_sources::ConfigSource;
    use crate::kubelet::{Address, ConfigFiles, Overrides};
    use crate::pod_source::KubeletPort;

    /// Returns a kubelet port without a listener, and a cluster with credentials.
    async fn port_without_listener() -> (KubeletPort, Cluster) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address { host: "127.0.0.1".into(), port: Some(listener.local_addr().unwrap().port()) };
        let port = KubeletPort {
            address: Some(address),
            timeout: Duration::from_secs(20),
            ..KubeletPort::default()
        };
        let made = rcgen::generate_simple_self_signed(["api".to_owned()]).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let (ca, file) = (dir.path().join("ca.crt"), dir.path().join("kubeconfig"));
        std::fs::write(&ca, made.cert.pem()).unwrap();
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", "certificate-authority": ca}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "current-context": "c",
        });
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        (port, Cluster::new(Some(&file), Duration::from_secs(20)).await.unwrap())
    }

    fn reader(source: ConfigSource, overrides: Overrides) -> ConfigReader {
        reader_of(source, KubeletPort::default(), overrides, None)
    }

    fn reader_of(
        source: ConfigSource,
        port: KubeletPort,
        overrides: Overrides,
        cluster: Option<Cluster>,
    ) -> ConfigReader {
        let files = ConfigFiles { file: Some("/nowhere/config.yaml".into()), ..ConfigFiles::default() };
        ConfigReader::new(ConfigSources { source, files, port, overrides }, cluster)
    }

    #[tokio::test]
    async fn a_failed_request_is_repeated_later_and_at_once_for_the_next_kubelet() {
        let (port, cluster) = port_without_listener().await;
        let mut reader = reader_of(ConfigSource::Auto, port, Overrides::default(), Some(cluster));
        let (first, start) = (KubeletInstance::default(), Instant::now());
        assert_eq!(reader.read(first, None, start), Vec::<String>::new(), "the response may solve it");
        assert!(reader.is_requested());
        reader.received().await;
        let errors = reader.read(first, None, start);
        let [error] = &errors[..] else { panic!("{errors:?}") };
        let files = "cannot read the kubelet's configuration /nowhere/config.yaml: ";
        let requested = "; requested from the kubelet instead, the kubelet at https://127.0.0.1:";
        assert!(error.starts_with(files) && error.contains(requested), "{error}");
        let consequence = "the policies are unknown and no resources are treated as reserved";
        assert!(error.ends_with(consequence), "{error}");
        assert!(reader.error.as_ref().is_some_and(|reason| error.starts_with(reason)));
        assert!(!reader.is_requested(), "not so soon");
        reader.read(first, None, Instant::now() + RETRY * 2);
        assert!(reader.is_requested());
        reader.received().await;
        assert_eq!(reader.request.failures, 2);
        assert_eq!(reader.read(first.next(), None, start), Vec::<String>::new());
        assert_eq!((reader.is_requested(), reader.request.failures), (true, 0), "another kubelet");
    }

    #[tokio::test]
    async fn the_response_of_the_previous_kubelet_is_dropped() {
        let mut reader = reader(ConfigSource::Configz, Overrides::default());
        let (sender, receiver) = oneshot::channel();
        reader.request.response = Some(receiver);
        let _ = sender.send(Ok((KubeletConfig::default(), Vec::new())));
        let errors = reader.read(KubeletInstance::default().next(), None, Instant::now());
        assert!(errors[0].starts_with("there are no credentials"), "{errors:?}");
        assert_eq!(reader.config(), None);

        let (sender, receiver) = oneshot::channel();
        reader.request.response = Some(receiver);
        let _ = sender.send(Ok((KubeletConfig::default(), vec!["odd".to_owned()])));
        assert_eq!(reader.read(KubeletInstance::default().next(), None, Instant::now()), ["odd"]);
        assert!(reader.is_certain());
        assert_eq!(reader.read(KubeletInstance::default().next(), None, Instant::now()), ["odd"], "it stays");
    }

    #[test]
    fn policies_of_a_file_that_changed_after_the_kubelet_started_are_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.yaml");
        std::fs::write(&file, "cpuManagerPolicy: static\nmemoryManagerPolicy: Static\n").unwrap();
        let policies = |started: SystemTime, overrides| {
            let files = ConfigFiles { file: Some(file.clone()), ..ConfigFiles::default() };
            let port = KubeletPort::default();
            let sources = ConfigSources { source: ConfigSource::File, files, port, overrides };
            let mut reader = ConfigReader::new(sources, None);
            reader.read(KubeletInstance::default(), Some(started), Instant::now());
            let config = reader.config().unwrap();
            (config.cpu_manager_policy.clone(), config.memory_manager_policy.clone())
        };
        let written = std::fs::metadata(&file).unwrap().modified().unwrap();
        let (before, after) = (written - Duration::from_secs(60), written + Duration::from_secs(60));
        assert_eq!(policies(after, Overrides::default()), ("static".into(), "Static".into()));
        assert_eq!(policies(before, Overrides::default()), (String::new(), String::new()));
        let overrides = Overrides { cpu_manager_policy: Some("none".into()), ..Overrides::default() };
        assert_eq!(policies(before, overrides), ("none".into(), String::new()));
    }

    #[tokio::test]
    async fn overrides_need_no_source() {
        let overrides =
            Overrides { topology_manager_policy: Some("restricted".into()), ..Overrides::default() };
        let mut given = reader(ConfigSource::None, overrides);
        assert_eq!(given.read(KubeletInstance::default(), None, Instant::now()), Vec::<String>::new());
        let config = given.config().unwrap();
        assert_eq!(
            (config.topology_manager_policy.as_str(), config.cpu_manager_policy.as_str()),
            ("restricted", "")
        );
        let mut nothing = reader(ConfigSource::None, Overrides::default());
        assert_eq!(nothing.read(KubeletInstance::default(), None, Instant::now()), Vec::<String>::new());
        assert!(nothing.config().is_none() && nothing.error.is_none());
    }
}
