//! A simulated kubelet: the podresources API over real gRPC on a real unix socket, and the state files beside
//! it, for a machine that is described as data.
//!
//! It is fast and misbehaves on demand ([`Fault`]); whatever the real kubelet can do as well is held to the
//! same contract tests. [`model`] holds the managers without any I/O.

mod answers;
mod cpu_manager;
mod device_manager;
mod faults;
mod limiter;
mod memory_manager;
pub mod model;
mod oracle;
mod pod;
mod service;
mod settings;
mod state_files;
mod traffic;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde_json::Value;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;

pub use device_manager::HeldDevices;
pub use faults::{Age, Call, Fault, Told};
pub use model::{Block, Given, Model, Pod, Refusal, Stage};
pub use oracle::{Amounts, Expected, Split};
pub use pod::{Claimed, ContainerSpec, PodLevel, PodSpec, Role};
pub use traffic::Traffic;

use self::faults::Faults;
use self::limiter::Limiter;
use super::machine::{Device, MachineSpec};
use super::serve::Serving;
use crate::kubelet::proto::{v1, v1alpha1};

/// How the kubelet behaves where real ones differ.
#[derive(Clone, Debug)]
pub struct Options {
    /// Answers come in an order drawn from this seed.
    pub seed: u64,
    /// From a pod's leaving the List to the CPU Manager's freeing what it held; `Duration::MAX`: only when it is told to
    /// ([`SimKubelet::reconcile`]). The other managers free at the next admission.
    pub release_lag: Duration,
    /// From a pod's name in the List to its admission.
    pub admission_lag: Duration,
    /// How a restart goes.
    pub restart: RestartTiming,
    /// How old the podresources API is.
    pub age: Age,
    /// Does the limiter (100 requests per second, 10 at once) refuse requests?
    pub limited: bool,
}

impl Default for Options {
    /// A current kubelet that frees a second after a pod is gone, as seen on real ones, and admits at once.
    fn default() -> Self {
        Self {
            seed: 0,
            release_lag: Duration::from_secs(1),
            admission_lag: Duration::ZERO,
            restart: RestartTiming::default(),
            age: Age::default(),
            limited: true,
        }
    }
}

/// How long the parts of a restart take, each from the one before.
#[derive(Clone, Copy, Debug)]
pub struct RestartTiming {
    /// The socket is gone.
    pub down: Duration,
    /// The socket is back, but static policies tell no CPUs and no memory.
    pub managers: Duration,
    /// The List is empty.
    pub pods: Duration,
    /// Device plugins have not registered again.
    pub plugins: Duration,
}

impl Default for RestartTiming {
    fn default() -> Self {
        Self {
            down: Duration::from_millis(200),
            managers: Duration::from_millis(20),
            pods: Duration::from_millis(100),
            plugins: Duration::from_millis(300),
        }
    }
}

/// How often each method was called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// `List`, both versions.
    pub list: u64,
    /// `GetAllocatableResources`.
    pub allocatable: u64,
    /// `Get`.
    pub get: u64,
    /// Refused by the limiter; not in the counts above.
    pub refused: u64,
}

/// Why the simulated kubelet cannot do its work.
#[derive(Debug, thiserror::Error)]
#[error("the simulated kubelet cannot write {path}: {source}")]
pub struct SimError {
    /// What it wanted to write.
    pub path: PathBuf,
    /// What the system said.
    pub source: io::Error,
}

/// A simulated kubelet. Dropping it is its death: the socket file stays, nobody listens.
#[derive(Debug)]
pub struct SimKubelet {
    shared: Arc<Shared>,
    serving: Mutex<Option<Serving>>,
    /// The kubelet's registration socket and those of the plugins.
    plugin_sockets: Mutex<BTreeMap<PathBuf, std::os::unix::net::UnixListener>>,
    tasks: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    options: Options,
    state: Mutex<State>,
    /// Cuts the connections of the kubelet that serves now.
    cut: Mutex<Option<Arc<watch::Sender<u64>>>>,
}

#[derive(Debug)]
struct State {
    model: Model,
    rng: Rng,
    limiter: Limiter,
    limited: bool,
    calls: Calls,
    faults: Faults,
    pods_are_known: bool,
    managers_are_ready: bool,
    /// Temporary names, so that no two are alike.
    files: u64,
    /// The last content of each state file: nothing is written twice.
    written: BTreeMap<PathBuf, String>,
    /// When the last change was complete.
    changed: Instant,
    /// What was told, once somebody wants to know.
    journal: Option<Vec<Told>>,
    /// Which calls came, once somebody wants to know.
    traffic: Option<Traffic>,
}

impl Shared {
    /// Cuts the connections that are open now.
    fn cut_connections(&self) {
        if let Some(cut) = &*lock(&self.cut) {
            cut.send_modify(|generation| *generation += 1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Brings every state file up to date, the CPU Manager's last.
    fn write_state(&self, state: &mut State) -> Result<(), SimError> {
        let files = [
            ("device-plugins/kubelet_internal_checkpoint", Some(state_files::devices(&state.model))),
            ("memory_manager_state", state_files::memory_manager(&state.model)),
            ("cpu_manager_state", Some(state_files::cpu_manager(&state.model))),
        ];
        for (name, content) in files {
            if let Some(content) = content {
                self.write(state, name, &content)?;
            }
        }
        Ok(())
    }

    /// Temporary file in the same directory, then rename, like the kubelet; without its fsync, since nothing
    /// here outlives a crash of the machine.
    fn write(&self, state: &mut State, name: &str, content: &Value) -> Result<(), SimError> {
        let path = self.root.join(name);
        let text = content.to_string();
        if state.written.get(&path) == Some(&text) {
            return Ok(());
        }
        state.files += 1;
        let temporary = path.with_file_name(format!(".{}", state.files));
        let explain = |source| SimError { path: path.clone(), source };
        std::fs::write(&temporary, &text).map_err(explain)?;
        std::fs::rename(&temporary, &path).map_err(explain)?;
        state.written.insert(path, text);
        Ok(())
    }

    /// The CPU Manager frees what ended pods hold.
    fn reconcile(&self) {
        let state = &mut *self.lock();
        if !state.model.reconcile() {
            return;
        }
        let content = state_files::cpu_manager(&state.model);
        if let Err(error) = self.write(state, "cpu_manager_state", &content) {
            tracing::warn!("{error}");
        }
    }

    fn write_state_or_say(&self, state: &mut State) {
        if let Err(error) = self.write_state(state) {
            tracing::warn!("{error}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimKubelet {
    /// Starts a kubelet for `spec` whose root directory is `root`, everything ready, no pods. It runs on the
    /// tokio runtime it is started on.
    ///
    /// # Errors
    /// When a file or a socket below `root` cannot be made.
    pub fn start(spec: &MachineSpec, root: &Path, options: Options) -> Result<Self, SimError> {
        let state = State {
            model: Model::aged(spec, options.age),
            rng: Rng::with_seed(options.seed),
            limiter: Limiter::new(Instant::now()),
            limited: options.limited,
            calls: Calls::default(),
            faults: Faults::default(),
            pods_are_known: true,
            managers_are_ready: true,
            files: 0,
            written: BTreeMap::new(),
            changed: Instant::now(),
            journal: None,
            traffic: None,
        };
        let shared =
            Shared { root: root.to_owned(), options, state: Mutex::new(state), cut: Mutex::default() };
        let kubelet = Self {
            shared: Arc::new(shared),
            serving: Mutex::default(),
            plugin_sockets: Mutex::default(),
            tasks: Mutex::default(),
        };
        for directory in ["pod-resources", "device-plugins"] {
            let path = root.join(directory);
            std::fs::create_dir_all(&path).map_err(|source| SimError { path, source })?;
        }
        {
            let state = &mut *kubelet.shared.lock();
            kubelet.shared.write(state, "config.yaml", &state_files::config(spec))?;
            kubelet.shared.write_state(state)?;
        }
        kubelet.open_plugin_sockets()?;
        kubelet.listen()?;
        Ok(kubelet)
    }

    /// The podresources socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.shared.root.join("pod-resources/kubelet.sock")
    }

    /// The kubelet's root directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.shared.root
    }

    /// Runs a pod: its name is listed, then it is admitted, then the state files tell.
    ///
    /// # Errors
    /// The kubelet's refusal; the pod is not listed any more.
    pub async fn start_pod(&self, spec: PodSpec) -> Result<Vec<Given>, Refusal> {
        let uid = spec.uid.clone();
        let (namespace, name) = (spec.namespace.clone(), spec.name.clone());
        self.announce_pod(spec)?;
        if !self.shared.options.admission_lag.is_zero() {
            tokio::time::sleep(self.shared.options.admission_lag).await;
        }
        let given = self.admit_pod(&uid)?;
        self.end_init(&namespace, &name);
        Ok(given)
    }

    /// The first half of [`SimKubelet::start_pod`]: the List names the pod, with nothing.
    ///
    /// # Errors
    /// When there is such a pod already.
    pub fn announce_pod(&self, spec: PodSpec) -> Result<(), Refusal> {
        self.shared.lock().model.announce(spec)
    }

    /// The second half of [`SimKubelet::start_pod`].
    ///
    /// # Errors
    /// The kubelet's refusal; the pod is not listed any more.
    pub fn admit_pod(&self, uid: &str) -> Result<Vec<Given>, Refusal> {
        let state = &mut *self.shared.lock();
        let outcome = state.model.admit(uid);
        self.shared.write_state_or_say(state);
        state.changed = Instant::now();
        outcome
    }

    /// The plain init containers of an admitted pod have ended. Is there such a pod?
    pub fn end_init(&self, namespace: &str, name: &str) -> bool {
        let state = &mut *self.shared.lock();
        let known = state.model.end_init(namespace, name);
        self.shared.write_state_or_say(state);
        known
    }

    /// An in-place resize of one container: thousandths of a CPU and bytes of memory.
    ///
    /// # Errors
    /// The kubelet's refusal; nothing has changed.
    pub fn resize_pod(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        milli_cpu: u64,
        memory: u64,
    ) -> Result<(), Refusal> {
        let state = &mut *self.shared.lock();
        let outcome = state.model.resize(namespace, name, container, milli_cpu, memory);
        self.shared.write_state_or_say(state);
        state.changed = Instant::now();
        outcome
    }

    /// The CPU Manager's reconcile period is over.
    pub fn reconcile(&self) {
        self.shared.reconcile();
    }

    /// Every manager frees what pods hold that have ended, as it does first at the next admission.
    pub fn settle(&self) {
        let state = &mut *self.shared.lock();
        state.model.settle();
        self.shared.write_state_or_say(state);
    }

    /// The hardware is another from now on; whoever calls writes its tree. The kubelet does not notice before
    /// [`SimKubelet::reset`].
    pub fn set_hardware(&self, hardware: &MachineSpec) {
        self.shared.lock().model.set_hardware(hardware);
    }

    /// The pod is gone: it leaves the List now, the state files tell after the release lag. Was it there?
    pub fn stop_pod(&self, namespace: &str, name: &str) -> bool {
        let gone = {
            let state = &mut *self.shared.lock();
            state.changed = Instant::now();
            state.model.remove(namespace, name).is_some()
        };
        self.settle_later();
        gone
    }

    /// The pod's containers have ended; its object stays. Was it there?
    pub fn finish_pod(&self, namespace: &str, name: &str) -> bool {
        let ended = self.shared.lock().model.finish(namespace, name).is_some();
        self.settle_later();
        ended
    }

    fn settle_later(&self) {
        let lag = self.shared.options.release_lag;
        if lag.is_zero() {
            return self.shared.reconcile();
        }
        if lag == Duration::MAX {
            return;
        }
        let shared = self.shared.clone();
        self.spawn(async move {
            tokio::time::sleep(lag).await;
            shared.reconcile();
        });
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let tasks = &mut *lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// A device plugin registers or goes away. Is there such a plugin?
    pub fn register_plugin(&self, resource: &str, registered: bool) -> bool {
        let known = self.shared.lock().model.register(resource, registered);
        self.plugins_changed();
        known
    }

    /// A device plugin registers, for the first time or again, with these devices.
    pub fn offer_devices(&self, resource: &str, devices: &[Device]) {
        self.shared.lock().model.offer(resource, devices);
        self.plugins_changed();
    }

    fn plugins_changed(&self) {
        if let Err(error) = self.open_plugin_sockets() {
            tracing::warn!("{error}");
        }
        let state = &mut *self.shared.lock();
        self.shared.write_state_or_say(state);
    }

    /// A device plugin calls a device healthy or not. Is there such a device?
    pub fn set_device_health(&self, resource: &str, id: &str, healthy: bool) -> bool {
        let state = &mut *self.shared.lock();
        let known = state.model.set_health(resource, id, healthy);
        self.shared.write_state_or_say(state);
        known
    }

    /// Restarts the kubelet and returns when it is completely back, as [`Options::restart`] has it: the socket
    /// goes with its connections and returns as another inode, then the managers' inventory, the pods and the
    /// device plugins, one after another.
    ///
    /// # Errors
    /// When a file or a socket cannot be made again.
    pub async fn restart(&self) -> Result<(), SimError> {
        let timing = self.shared.options.restart;
        self.stop();
        tokio::time::sleep(timing.down).await;
        self.boot()?;
        tokio::time::sleep(timing.managers).await;
        self.shared.lock().managers_are_ready = true;
        tokio::time::sleep(timing.pods).await;
        self.shared.lock().pods_are_known = true;
        tokio::time::sleep(timing.plugins).await;
        self.register_plugins();
        Ok(())
    }

    /// Every device plugin registers.
    pub fn register_plugins(&self) {
        let resources: Vec<String> = self.with_model(|model| model.devices.plugins.keys().cloned().collect());
        for resource in resources {
            self.register_plugin(&resource, true);
        }
    }

    /// Ends the kubelet's process: connections break, the socket file is unlinked, pods keep what they hold.
    pub fn stop(&self) {
        lock(&self.serving).take();
        lock(&self.plugin_sockets).clear();
        // Gone already is as good.
        let _ = std::fs::remove_file(self.socket());
    }

    /// Ends the kubelet's process as `kill -9` does: connections break, socket files stay, nobody listens.
    pub fn kill(&self) {
        lock(&self.serving).take();
        lock(&self.plugin_sockets).clear();
    }

    /// Breaks the connections that are open now.
    pub fn cut_connections(&self) {
        self.shared.cut_connections();
    }

    /// Listens on another socket at the same path, in a directory that is made anew if need be. Connections break.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub fn listen_again(&self) -> Result<(), SimError> {
        lock(&self.serving).take();
        self.listen()
    }

    /// Writes all state files and opens all sockets of plugins once more, in directories that are made anew if need be:
    /// somebody else did something to them.
    ///
    /// # Errors
    /// When one of them cannot be made.
    pub fn write_again(&self) -> Result<(), SimError> {
        lock(&self.plugin_sockets).clear();
        let path = self.shared.root.join("device-plugins");
        std::fs::create_dir_all(&path).map_err(|source| SimError { path, source })?;
        self.open_plugin_sockets()?;
        let state = &mut *self.shared.lock();
        state.written.clear();
        self.shared.write_state(state)
    }

    /// What was told since this was asked last; the first time nothing, but from then on it is kept.
    pub fn take_told(&self) -> Vec<Told> {
        std::mem::take(self.shared.lock().journal.get_or_insert_default())
    }

    /// Which calls have come; counted from the first time that this is asked.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().traffic.get_or_insert_default().clone()
    }

    /// Starts the kubelet's process again: nothing is known yet but what the state files tell. The caller says
    /// when managers, pods and plugins are back ([`SimKubelet::restart`] does it by the clock).
    ///
    /// # Errors
    /// When a file or a socket cannot be made again.
    pub fn boot(&self) -> Result<(), SimError> {
        {
            let state = &mut *self.shared.lock();
            state.pods_are_known = false;
            state.managers_are_ready = false;
            state.limiter = Limiter::new(Instant::now());
            state.model.restart();
            state.written.clear();
            self.shared.write_state(state)?;
        }
        self.open_plugin_sockets()?;
        self.listen()
    }

    /// Between [`SimKubelet::stop`] and [`SimKubelet::boot`]: somebody removes the state files and the pods, so that the
    /// kubelet starts on the hardware as it is now.
    pub fn reset(&self) {
        self.shared.lock().model.reset();
    }

    /// After [`SimKubelet::boot`]: do the managers tell their inventory, does the List name pods?
    pub fn set_ready(&self, managers: bool, pods: bool) {
        let state = &mut *self.shared.lock();
        state.managers_are_ready = managers;
        state.pods_are_known = pods;
    }

    /// The next `times` calls of a method go wrong. Faults queue up.
    pub fn fail_next(&self, call: Call, times: usize, fault: &Fault) {
        self.shared.lock().faults.push(call, times, fault);
    }

    /// Forgets the faults that wait.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// From now on the API is as old as this.
    pub fn set_age(&self, age: Age) {
        self.shared.lock().model.age = age;
    }

    /// From now on the limiter refuses what is too much, or not.
    pub fn set_limited(&self, limited: bool) {
        self.shared.lock().limited = limited;
    }

    /// How often each method was called.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.shared.lock().calls
    }

    /// What a true `NodeResourceTopology` says now.
    #[must_use]
    pub fn expected(&self) -> Expected {
        self.shared.lock().model.expected()
    }

    /// When the last admission was complete, the List and the state files together, or the last pod left the
    /// List.
    #[must_use]
    pub fn changed_at(&self) -> Instant {
        self.shared.lock().changed
    }

    /// Looks at the managers' state.
    pub fn with_model<T>(&self, look: impl FnOnce(&Model) -> T) -> T {
        look(&self.shared.lock().model)
    }

    /// Listens under a temporary name and renames: the final name never appears by creation.
    fn listen(&self) -> Result<(), SimError> {
        let path = self.socket();
        if let Some(directory) = path.parent() {
            let explain = |source| SimError { path: directory.to_owned(), source };
            std::fs::create_dir_all(directory).map_err(explain)?;
        }
        let number = {
            let state = &mut *self.shared.lock();
            state.files += 1;
            state.files
        };
        let temporary = path.with_file_name(format!(".{number}"));
        let explain = |source| SimError { path: path.clone(), source };
        // What an earlier kubelet in this directory left behind.
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary).map_err(explain)?;
        std::fs::rename(&temporary, &path).map_err(explain)?;
        let service = service::Service(self.shared.clone());
        let v1 = v1::pod_resources_lister_server::PodResourcesListerServer::new(service.clone());
        let v1alpha1 = v1alpha1::pod_resources_lister_server::PodResourcesListerServer::new(service);
        let routes = Routes::new(v1).add_service(v1alpha1).into_axum_router();
        let shared = self.shared.clone();
        let service =
            tower::service_fn(move |request| service::answer(shared.clone(), routes.clone(), request));
        let serving = Serving::start(listener, service);
        *lock(&self.shared.cut) = Some(serving.cut());
        *lock(&self.serving) = Some(serving);
        Ok(())
    }

    /// The kubelet's registration socket, and one socket for each plugin that is registered.
    fn open_plugin_sockets(&self) -> Result<(), SimError> {
        let directory = self.shared.root.join("device-plugins");
        let mut wanted = vec![directory.join("kubelet.sock")];
        {
            let state = self.shared.lock();
            let registered = state.model.devices.plugins.iter().filter(|(_, plugin)| plugin.registered);
            wanted.extend(
                registered.map(|(name, _)| directory.join(format!("{}.sock", name.replace('/', "_")))),
            );
        }
        let sockets = &mut *lock(&self.plugin_sockets);
        sockets.retain(|path, _| wanted.contains(path) || std::fs::remove_file(path).is_err());
        for path in wanted.into_iter().filter(|path| !sockets.contains_key(path)).collect::<Vec<_>>() {
            let _ = std::fs::remove_file(&path);
            let listener = std::os::unix::net::UnixListener::bind(&path)
                .map_err(|source| SimError { path: path.clone(), source })?;
            sockets.insert(path, listener);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
