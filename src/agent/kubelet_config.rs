//! The kubelet's configuration: its files are read at once, and the kubelet itself is asked concurrently with
//! the scans.
//!
//! A kubelet reads its configuration once, when it starts. So it is read once for each kubelet, and later
//! changes of a file are not in effect yet.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cluster::Cluster;
use crate::kubelet::{ConfigFiles, Connection, KubeletConfig, Overrides, parse_configz};
use crate::pod_source::KubeletPort;
use crate::util::backoff::back_off;

/// Maximum size of a response. Real ones have a few KiB.
const CONFIGZ_LIMIT: usize = 1 << 20;

/// Initial backoff before a kubelet that did not return its configuration is asked again...
const AGAIN: Duration = Duration::from_secs(1);
/// ...and the maximum: a missing permission may be granted at any time.
const AGAIN_LIMIT: Duration = Duration::from_secs(60);

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
type Read = (KubeletConfig, Vec<String>);

impl ConfigSources {
    /// Returns true if there is any source.
    #[must_use]
    pub fn may_tell(&self) -> bool {
        self.source != ConfigSource::None
    }

    /// Returns true if the configuration can only be read by asking the kubelet, with the credentials for a
    /// cluster.
    #[must_use]
    pub fn ask_the_kubelet(&self) -> bool {
        self.asks() && self.read_files().is_err()
    }

    /// Reads the configuration without asking the kubelet: from its files, or from the overrides alone.
    /// Otherwise returns why its files cannot be read; `None` if they are not to be.
    fn read_files(&self) -> Result<Read, Option<String>> {
        match self.source {
            ConfigSource::Auto | ConfigSource::File => self.files.read().map_err(Some),
            ConfigSource::Configz => Err(None),
            ConfigSource::None => match self.overrides.alone() {
                Some(config) => Ok((config, Vec::new())),
                None => Err(None),
            },
        }
    }

    /// Returns the file that was replaced under its mount, if the files are read at all.
    fn replaced(&self) -> Option<PathBuf> {
        let reads = matches!(self.source, ConfigSource::Auto | ConfigSource::File);
        if reads { self.files.replaced() } else { None }
    }

    /// Returns the file that changed after a kubelet started, if the files are read at all.
    fn changed_since(&self, start: SystemTime) -> Option<PathBuf> {
        let reads = matches!(self.source, ConfigSource::Auto | ConfigSource::File);
        if reads { self.files.changed_since(start) } else { None }
    }

    const fn asks(&self) -> bool {
        matches!(self.source, ConfigSource::Auto | ConfigSource::Configz)
    }

    async fn ask(&self, cluster: &Cluster) -> Result<Read, String> {
        let https = self.port.connect(cluster).await?;
        let answer = https.get("/configz", CONFIGZ_LIMIT).await.map_err(|error| error.to_string())?;
        parse_configz(&answer)
            .map_err(|what| format!("what the kubelet answers GET /configz is not understood: {what}"))
    }

    /// Reads once, and waits for the kubelet if it has to be asked; `Ok(None)` if there is no source.
    pub(super) async fn read(&self, cluster: Option<&Cluster>) -> Result<Option<Read>, String> {
        let read = match self.read_files() {
            Err(problem) if self.asks() => match cluster.filter(|cluster| cluster.config().is_some()) {
                Some(cluster) => {
                    self.ask(cluster).await.map_err(|failure| both(problem.as_deref(), &failure))?
                }
                None => return Err(problem.unwrap_or_else(nobody_to_ask)),
            },
            Err(Some(problem)) => return Err(problem),
            Err(None) => return Ok(None),
            Ok(read) => read,
        };
        Ok(Some(self.complete(read)))
    }

    fn complete(&self, (mut config, problems): Read) -> Read {
        self.overrides.apply(&mut config);
        (config, problems)
    }
}

fn nobody_to_ask() -> String {
    "there are no credentials with which to ask the kubelet for its configuration".to_owned()
}

/// Describes why neither the files nor the kubelet returned a configuration.
fn both(files: Option<&str>, failure: &str) -> String {
    match files {
        Some(files) => format!("{files}; asked instead, {failure}"),
        None => failure.to_owned(),
    }
}

/// Reads the configuration of each kubelet once.
#[derive(Debug)]
pub(super) struct ConfigReader {
    sources: ConfigSources,
    /// Has the credentials.
    cluster: Option<Cluster>,
    /// The configuration and the connection it is valid for.
    known: Option<(Connection, KubeletConfig)>,
    asking: Asking,
    /// Whether a file changed after the kubelet started, so that its policies may be different.
    doubtful: bool,
    /// The problems of the configuration.
    problems: Vec<String>,
    /// Why the configuration is unknown.
    problem: Option<String>,
}

/// The state of asking one kubelet.
#[derive(Debug, Default)]
struct Asking {
    of: Connection,
    /// Set while it is being asked.
    answer: Option<oneshot::Receiver<Result<Read, String>>>,
    /// The number of consecutive failures, the last one, and when to ask again.
    failures: u32,
    failure: Option<String>,
    again_at: Option<Instant>,
}

impl Asking {
    fn of(connection: Connection) -> Self {
        Self { of: connection, ..Self::default() }
    }
}

impl ConfigReader {
    pub(super) fn new(sources: ConfigSources) -> Self {
        let asking = Asking::default();
        let problems = Vec::new();
        Self { sources, cluster: None, known: None, asking, doubtful: false, problems, problem: None }
    }

    /// Enables asking the kubelet.
    pub(super) fn ask_through(&mut self, cluster: Cluster) {
        self.cluster = Some(cluster).filter(|cluster| cluster.config().is_some());
    }

    /// Returns the configuration, if known. It may be that of the previous kubelet.
    pub(super) fn config(&self) -> Option<&KubeletConfig> {
        self.known.as_ref().map(|(_, config)| config)
    }

    /// Returns true if the kubelet runs with it, as far as can be determined.
    pub(super) fn is_certain(&self) -> bool {
        // Policies given by hand are certain.
        self.known.is_some() && (!self.doubtful || self.sources.overrides.topology_manager_policy.is_some())
    }

    /// Returns why it is unknown, if there is a reason.
    pub(super) fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns a file that this process can never read again, if the configuration of this kubelet is
    /// unknown. A new container can read it.
    pub(super) fn out_of_reach(&self) -> Option<PathBuf> {
        self.problem.as_ref().and_then(|_| self.sources.replaced())
    }

    /// Reads the configuration of this connection's kubelet, unless it is known, and returns its problems.
    /// `made`: when the kubelet's socket was created.
    pub(super) fn read(
        &mut self,
        connection: Connection,
        made: Option<SystemTime>,
        now: Instant,
    ) -> Vec<String> {
        self.take_answer(connection);
        if self.known.as_ref().is_some_and(|(from, _)| *from == connection) {
            return self.problems.clone();
        }
        let files = match self.sources.read_files() {
            Ok(read) => {
                let changed = made.and_then(|made| self.sources.changed_since(made));
                self.know(connection, read);
                self.problems.extend(changed.as_deref().map(changed_problem));
                self.doubtful = changed.is_some();
                if self.doubtful {
                    self.forget_managers();
                }
                return self.problems.clone();
            }
            Err(files) => files,
        };
        self.ask(now);
        let asking = self.asking.answer.is_some();
        self.problem = match &self.asking.failure {
            Some(failure) => Some(both(files.as_deref(), failure)),
            // A response may still solve it.
            None if asking => None,
            None if self.sources.asks() => Some(files.unwrap_or_else(nobody_to_ask)),
            None => files,
        };
        let problem = self.problem.iter();
        problem.map(|problem| problem_of(problem, self.known.is_some())).collect()
    }

    fn know(&mut self, connection: Connection, read: Read) {
        let (config, problems) = self.sources.complete(read);
        self.known = Some((connection, config));
        (self.problems, self.problem, self.doubtful) = (problems, None, false);
        self.asking = Asking::of(connection);
    }

    /// Makes the managers' policies unknown where they are not given by hand: a kubelet that runs with `none`
    /// lists no CPUs, which under `static` would mean that it has none to allocate.
    fn forget_managers(&mut self) {
        let Some((_, config)) = &mut self.known else { return };
        config.cpu_manager_policy.clear();
        config.memory_manager_policy.clear();
        self.sources.overrides.apply(config);
    }

    /// Asks the kubelet, if that is configured, possible and due.
    fn ask(&mut self, now: Instant) {
        let early = self.asking.again_at.is_some_and(|at| now < at);
        if !self.sources.asks() || self.asking.answer.is_some() || early {
            return;
        }
        let Some(cluster) = self.cluster.clone() else { return };
        let (sources, (sender, receiver)) = (self.sources.clone(), oneshot::channel());
        tokio::spawn(async move { sender.send(sources.ask(&cluster).await) });
        self.asking.answer = Some(receiver);
    }

    /// Returns true if the kubelet is being asked.
    pub(super) fn is_asking(&self) -> bool {
        self.asking.answer.is_some()
    }

    /// Waits for the response of the kubelet that is being asked; never completes if none is.
    pub(super) async fn answered(&mut self) {
        let Some(answer) = &mut self.asking.answer else { return std::future::pending().await };
        match answer.await {
            Ok(read) => self.take(read),
            // The task that asks was dropped with its runtime.
            Err(_) => self.asking.answer = None,
        }
    }

    /// Takes a response that has arrived. One of an earlier kubelet is dropped.
    fn take_answer(&mut self, connection: Connection) {
        if self.asking.of != connection {
            self.asking = Asking::of(connection);
        }
        let answer = self.asking.answer.as_mut().and_then(|answer| answer.try_recv().ok());
        if let Some(read) = answer {
            self.take(read);
        }
    }

    fn take(&mut self, read: Result<Read, String>) {
        let asking = &mut self.asking;
        asking.answer = None;
        match read {
            Ok(read) => self.know(self.asking.of, read),
            Err(failure) => {
                asking.failure = Some(failure);
                asking.again_at = Some(Instant::now() + back_off(&mut asking.failures, AGAIN, AGAIN_LIMIT));
            }
        }
    }
}

fn changed_problem(file: &Path) -> String {
    format!(
        "{} changed after the kubelet started, which may still run with what it said before: policies that the object \
         has already stay until the kubelet starts again",
        file.display()
    )
}

/// Describes the consequence of a configuration that cannot be read. `known`: it could be read before.
pub(super) fn problem_of(problem: &str, known: bool) -> String {
    if known {
        format!("{problem}; the last one read still holds")
    } else {
        format!("{problem}; policies are left out and nothing is taken as reserved")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubelet::Address;

    /// Returns a kubelet port without a listener, and a cluster with credentials.
    async fn nobody() -> (KubeletPort, Cluster) {
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

    fn reader(source: ConfigSource, port: KubeletPort, overrides: Overrides) -> ConfigReader {
        let files = ConfigFiles { file: Some("/nowhere/config.yaml".into()), ..ConfigFiles::default() };
        ConfigReader::new(ConfigSources { source, files, port, overrides })
    }

    /// Waits for the response of the kubelet that is being asked.
    async fn answered(reader: &mut ConfigReader) {
        let answer = reader.asking.answer.take().unwrap().await.unwrap();
        reader.take(answer);
    }

    #[tokio::test]
    async fn a_kubelet_that_does_not_tell_is_asked_again_later_and_the_next_one_at_once() {
        let (port, cluster) = nobody().await;
        let mut reader = reader(ConfigSource::Auto, port, Overrides::default());
        reader.ask_through(cluster);
        let (first, start) = (Connection::default(), Instant::now());
        assert_eq!(reader.read(first, None, start), Vec::<String>::new(), "the answer may make it good");
        assert!(reader.asking.answer.is_some());
        answered(&mut reader).await;
        let told = reader.read(first, None, start);
        assert_eq!(told.len(), 1);
        assert!(
            told[0].starts_with("cannot read the kubelet's configuration /nowhere/config.yaml: "),
            "{told:?}"
        );
        assert!(told[0].contains("; asked instead, the kubelet at https://127.0.0.1:"), "{told:?}");
        assert!(told[0].ends_with("policies are left out and nothing is taken as reserved"), "{told:?}");
        assert!(reader.problem().is_some_and(|problem| told[0].starts_with(problem)));
        assert!(reader.asking.answer.is_none(), "not so soon");
        reader.read(first, None, Instant::now() + AGAIN * 2);
        assert!(reader.asking.answer.is_some());
        answered(&mut reader).await;
        assert_eq!(reader.asking.failures, 2);
        assert_eq!(reader.read(first.next(), None, start), Vec::<String>::new());
        assert_eq!((reader.asking.answer.is_some(), reader.asking.failures), (true, 0), "another kubelet");
    }

    #[tokio::test]
    async fn an_answer_of_the_kubelet_before_is_none() {
        let mut reader = reader(ConfigSource::Configz, KubeletPort::default(), Overrides::default());
        let (sender, receiver) = oneshot::channel();
        reader.asking.answer = Some(receiver);
        let _ = sender.send(Ok((KubeletConfig::default(), Vec::new())));
        let told = reader.read(Connection::default().next(), None, Instant::now());
        assert!(told[0].starts_with("there are no credentials"), "{told:?}");
        assert_eq!(reader.config(), None);

        let (sender, receiver) = oneshot::channel();
        reader.asking.answer = Some(receiver);
        let _ = sender.send(Ok((KubeletConfig::default(), vec!["odd".to_owned()])));
        assert_eq!(reader.read(Connection::default().next(), None, Instant::now()), ["odd"]);
        assert!(reader.is_certain());
        assert_eq!(reader.read(Connection::default().next(), None, Instant::now()), ["odd"], "it still is");
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
            let mut reader = ConfigReader::new(sources);
            reader.read(Connection::default(), Some(started), Instant::now());
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
    async fn what_is_given_by_hand_needs_nobody() {
        let overrides = Overrides { topology_manager_policy: Some("restricted".into()), ..Overrides::default() };
        let mut given = reader(ConfigSource::None, KubeletPort::default(), overrides);
        assert_eq!(given.read(Connection::default(), None, Instant::now()), Vec::<String>::new());
        let config = given.config().unwrap();
        assert_eq!(
            (config.topology_manager_policy.as_str(), config.cpu_manager_policy.as_str()),
            ("restricted", "")
        );
        let mut nothing = reader(ConfigSource::None, KubeletPort::default(), Overrides::default());
        assert_eq!(nothing.read(Connection::default(), None, Instant::now()), Vec::<String>::new());
        assert!(nothing.config().is_none());
        assert_eq!(nothing.sources.read(None).await, Ok(None));
    }
}
