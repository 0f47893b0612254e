//! How the kubelet is configured: its files are read at once, and the kubelet itself is asked beside the scans.
//!
//! A kubelet reads its own configuration once, when it starts: so do we for each kubelet, and what a file says later is
//! not yet true.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::KubeletPort;
use crate::backoff::back_off;
use crate::cluster::Cluster;
use crate::config::ConfigSource;
use crate::kubelet::{ByHand, ConfigFiles, Connection, KubeletConfig, parse_configz};

/// Real answers have a few KiB.
const CONFIGZ_LIMIT: usize = 1 << 20;

/// How soon a kubelet that did not tell is asked again...
const AGAIN: Duration = Duration::from_secs(1);
/// ...and the longest wait: a missing right may be given at any time.
const AGAIN_LIMIT: Duration = Duration::from_secs(60);

/// Who tells how the kubelet is configured.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    /// Whom to believe.
    pub source: ConfigSource,
    /// Its files.
    pub files: ConfigFiles,
    /// The kubelet itself.
    pub port: KubeletPort,
    /// What stands whatever they say.
    pub by_hand: ByHand,
}

/// A configuration, and the keys in it that make no sense.
type Read = (KubeletConfig, Vec<String>);

impl ConfigSources {
    /// May anybody tell at all?
    #[must_use]
    pub fn may_tell(&self) -> bool {
        self.source != ConfigSource::None
    }

    /// Is there no other way to know than to ask the kubelet, with the credentials for a cluster?
    #[must_use]
    pub fn ask_the_kubelet(&self) -> bool {
        self.asks() && self.read_files().is_err()
    }

    /// What the files say, and why they do not where the kubelet has to be asked.
    fn read_files(&self) -> Result<Read, Option<String>> {
        match self.source {
            ConfigSource::Auto | ConfigSource::File => self.files.read().map_err(Some),
            ConfigSource::Configz => Err(None),
            ConfigSource::None => match self.by_hand.alone() {
                Some(config) => Ok((config, Vec::new())),
                None => Err(None),
            },
        }
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

    /// Reads once, and waits for the kubelet if it has to be asked; `Ok(None)` if nobody is to tell.
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
        self.by_hand.apply(&mut config);
        (config, problems)
    }
}

fn nobody_to_ask() -> String {
    "there are no credentials with which to ask the kubelet for its configuration".to_owned()
}

/// Why neither the files nor the kubelet tell.
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
    /// Who knows the credentials.
    cluster: Option<Cluster>,
    /// The configuration and the connection it holds for.
    known: Option<(Connection, KubeletConfig)>,
    /// The kubelet that is being asked.
    asked: Option<(Connection, oneshot::Receiver<Result<Read, String>>)>,
    /// How often in a row it did not tell, why, and when to ask again.
    failures: u32,
    failure: Option<String>,
    ask_at: Option<Instant>,
}

impl ConfigReader {
    pub(super) fn new(sources: ConfigSources) -> Self {
        Self { sources, cluster: None, known: None, asked: None, failures: 0, failure: None, ask_at: None }
    }

    /// The kubelet may be asked from now on.
    pub(super) fn ask_through(&mut self, cluster: Cluster) {
        self.cluster = Some(cluster).filter(|cluster| cluster.config().is_some());
    }

    /// The configuration as far as it is known, if only of the kubelet before.
    pub(super) fn config(&self) -> Option<&KubeletConfig> {
        self.known.as_ref().map(|(_, config)| config)
    }

    /// May it still come?
    pub(super) fn may_come(&self) -> bool {
        self.known.is_none() && self.sources.may_tell()
    }

    /// Waits for the answer of a kubelet that is being asked; it is taken by the next [`ConfigReader::read`].
    pub(super) async fn answered(&mut self) {
        if let Some((from, answer)) = &mut self.asked {
            let (from, read) = (*from, answer.await);
            self.take(from, read.unwrap_or_else(|_| Err("nobody asked the kubelet".to_owned())));
        }
    }

    /// Reads what this connection's kubelet has read, unless that is known; returns what is wrong with it.
    pub(super) fn read(&mut self, connection: Connection, now: Instant) -> Vec<String> {
        let mut problems = self.take_answer(connection);
        if self.known.as_ref().is_some_and(|(from, _)| *from == connection) {
            return problems;
        }
        match self.sources.read_files() {
            Ok(read) => problems.extend(self.know(connection, read)),
            Err(files) => {
                self.ask(connection, now);
                let asking = self.asked.is_some() && self.failure.is_none();
                let problem = match &self.failure {
                    Some(failure) => Some(both(files.as_deref(), failure)),
                    // What an answer makes good is no problem.
                    None if asking => None,
                    None if self.sources.asks() => Some(files.unwrap_or_else(nobody_to_ask)),
                    None => files,
                };
                problems.extend(problem.map(|problem| problem_of(&problem, self.known.is_some())));
            }
        }
        problems
    }

    fn know(&mut self, connection: Connection, read: Read) -> Vec<String> {
        let (config, problems) = self.sources.complete(read);
        self.known = Some((connection, config));
        (self.failures, self.failure, self.ask_at) = (0, None, None);
        problems
    }

    /// Asks the kubelet, if that is wanted, possible and due.
    fn ask(&mut self, connection: Connection, now: Instant) {
        if !self.sources.asks() || self.asked.is_some() || self.ask_at.is_some_and(|at| now < at) {
            return;
        }
        let Some(cluster) = self.cluster.clone() else { return };
        let (sources, (sender, receiver)) = (self.sources.clone(), oneshot::channel());
        tokio::spawn(async move { sender.send(sources.ask(&cluster).await) });
        self.asked = Some((connection, receiver));
    }

    /// Takes an answer that came meanwhile. One of an earlier kubelet is none.
    fn take_answer(&mut self, connection: Connection) -> Vec<String> {
        if self.asked.as_ref().is_some_and(|(from, _)| *from != connection) {
            (self.asked, self.failures, self.failure, self.ask_at) = (None, 0, None, None);
        }
        let Some((from, answer)) = &mut self.asked else { return Vec::new() };
        match answer.try_recv() {
            Ok(read) => {
                let from = *from;
                self.take(from, read)
            }
            Err(_) => Vec::new(),
        }
    }

    fn take(&mut self, from: Connection, read: Result<Read, String>) -> Vec<String> {
        self.asked = None;
        match read {
            Ok(read) => self.know(from, read),
            Err(failure) => {
                self.failure = Some(failure);
                self.ask_at = Some(Instant::now() + back_off(&mut self.failures, AGAIN, AGAIN_LIMIT));
                Vec::new()
            }
        }
    }
}

/// What a configuration that cannot be read means; `known`: it could be read before.
pub(super) fn problem_of(problem: &str, known: bool) -> String {
    if known {
        format!("{problem}; the last one read still holds")
    } else {
        format!("{problem}; policies are left out and nothing is taken as reserved")
    }
}
