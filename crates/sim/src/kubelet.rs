//! A simulated kubelet: the podresources API over gRPC on a unix socket, and the kubelet's checkpoints, for a
//! machine that is described as data.
//!
//! It injects faults on demand ([`Fault`]). [`model`] contains the managers without any I/O.

mod allocation;
mod cpu_manager;
mod device_manager;
mod faults;
mod files;
mod limiter;
mod memory_manager;
pub mod model;
mod oracle;
mod placement;
mod pod;
mod responses;
mod service;
mod settings;
mod shared;
mod sockets;
mod traffic;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tokio::task::JoinSet;

pub use allocation::{AllocatedDevices, Allocation, Block, Rejection};
pub use faults::{Call, Fault, RecordedResponse};
pub use model::{ClaimUse, Model, Pod, Stage};
pub use oracle::{Amounts, Claimed, DeviceId, Expected, Split};
pub use pod::{ClaimedDevice, ContainerSpec, PodLevel, PodSpec, Role};
pub use settings::KubeletVersion;
pub use traffic::Traffic;

use self::faults::Faults;
use self::limiter::Limiter;
use self::shared::{Shared, State};
use super::machine::{Device, MachineSpec};
use super::serve::Serving;
use crate::sync::lock;

/// Behavior in which real kubelets differ.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed for the order of the items in responses.
    pub seed: u64,
    /// Time from a pod's removal from the List, or its rejection, until the CPU Manager releases its CPUs;
    /// with `Duration::MAX` it does so only on [`SimKubelet::reconcile`]. The other managers release at the
    /// next admission.
    pub release_lag: Duration,
    /// Time from a pod's appearance in the List to its admission.
    pub admission_lag: Duration,
    /// Duration of the phases of a restart.
    pub restart: RestartTiming,
    /// The version whose podresources API and checkpoints are simulated.
    pub version: KubeletVersion,
    /// Whether the rate limiter (100 requests per second, burst of 10) rejects requests.
    pub limited: bool,
}

impl Default for Options {
    /// A current kubelet that releases CPUs one second after a pod is deleted, as measured on real ones, and
    /// admits at once.
    fn default() -> Self {
        Self {
            seed: 0,
            release_lag: Duration::from_secs(1),
            admission_lag: Duration::ZERO,
            restart: RestartTiming::default(),
            version: KubeletVersion::default(),
            limited: true,
        }
    }
}

/// Duration of each phase of a restart, one after another.
#[derive(Clone, Copy, Debug)]
pub struct RestartTiming {
    /// The socket does not exist.
    pub down: Duration,
    /// The socket is back, but static policies report no CPUs and no memory.
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

/// Number of calls of each method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// `List`, both versions.
    pub list: u64,
    /// `GetAllocatableResources`.
    pub allocatable: u64,
    /// `Get`.
    pub get: u64,
    /// Rejected by the rate limiter; not in the counts above.
    pub rejected: u64,
}

impl Calls {
    const fn count(&mut self, call: Call) {
        match call {
            Call::List => self.list += 1,
            Call::Allocatable => self.allocatable += 1,
            Call::Get => self.get += 1,
        }
    }
}

/// A failure to write the simulated kubelet's files or sockets.
#[derive(Debug, thiserror::Error)]
#[error("the simulated kubelet cannot write {path}: {source}")]
pub struct SimError {
    /// The path.
    pub path: PathBuf,
    /// The cause.
    pub source: io::Error,
}

/// A simulated kubelet. Dropping it is like a crash: the socket file stays, but nothing listens on it.
#[derive(Debug)]
pub struct SimKubelet {
    shared: Arc<Shared>,
    serving: Mutex<Option<Serving>>,
    /// The kubelet's registration socket and the plugins' sockets.
    plugin_sockets: Mutex<BTreeMap<PathBuf, std::os::unix::net::UnixListener>>,
    tasks: Mutex<JoinSet<()>>,
}

impl SimKubelet {
    /// Starts a kubelet for `spec` with root directory `root`, ready and without pods, on the current tokio
    /// runtime.
    ///
    /// # Errors
    /// When a file or a socket below `root` cannot be created.
    pub fn start(spec: &MachineSpec, root: &Path, options: Options) -> Result<Self, SimError> {
        let state = State {
            model: Model::with_version(spec, options.version),
            rng: Rng::with_seed(options.seed),
            limiter: Limiter::new(Instant::now()),
            calls: Calls::default(),
            faults: Faults::default(),
            pods_are_known: true,
            managers_are_ready: true,
            temporary_files: 0,
            written: BTreeMap::new(),
            changed: Instant::now(),
            recorded: None,
            traffic: None,
        };
        let shared =
            Shared { root: root.to_owned(), options, state: Mutex::new(state), server: Mutex::default() };
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
            kubelet.shared.write(state, "config.yaml", &files::config(spec))?;
            kubelet.shared.write_checkpoints(state)?;
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

    /// Runs a pod: it appears in the List, is admitted, and is then written to the checkpoints.
    ///
    /// # Errors
    /// The kubelet's rejection; the pod is no longer listed.
    pub async fn start_pod(&self, spec: PodSpec) -> Result<Vec<Allocation>, Rejection> {
        let uid = spec.uid.clone();
        let (namespace, name) = (spec.namespace.clone(), spec.name.clone());
        self.add_pod(spec)?;
        if !self.shared.options.admission_lag.is_zero() {
            tokio::time::sleep(self.shared.options.admission_lag).await;
        }
        let allocations = self.admit_pod(&uid)?;
        self.terminate_init_containers(&namespace, &name);
        Ok(allocations)
    }

    /// The first half of [`SimKubelet::start_pod`]: the pod appears in the List, without resources.
    ///
    /// # Errors
    /// When the pod exists already.
    pub fn add_pod(&self, spec: PodSpec) -> Result<(), Rejection> {
        self.shared.lock().model.add(spec)
    }

    /// The second half of [`SimKubelet::start_pod`].
    ///
    /// # Errors
    /// The kubelet's rejection; the pod is no longer listed.
    pub fn admit_pod(&self, uid: &str) -> Result<Vec<Allocation>, Rejection> {
        let outcome = {
            let state = &mut *self.shared.lock();
            let outcome = state.model.admit(uid);
            self.shared.write_checkpoints_or_warn(state);
            state.changed = Instant::now();
            outcome
        };
        if outcome.is_err() {
            // Some managers may have allocated resources before another one rejected the pod.
            self.reconcile_later();
        }
        outcome
    }

    /// Marks the regular init containers of an admitted pod as terminated. Returns false if there is no such
    /// pod.
    pub fn terminate_init_containers(&self, namespace: &str, name: &str) -> bool {
        let state = &mut *self.shared.lock();
        let exists = state.model.terminate_init_containers(namespace, name);
        self.shared.write_checkpoints_or_warn(state);
        exists
    }

    /// Resizes one container in place, to this many millicores and bytes of memory.
    ///
    /// # Errors
    /// The kubelet's rejection; nothing has changed.
    pub fn resize_pod(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
        milli_cpu: u64,
        memory: u64,
    ) -> Result<(), Rejection> {
        let state = &mut *self.shared.lock();
        let outcome = state.model.resize(namespace, name, container, milli_cpu, memory);
        self.shared.write_checkpoints_or_warn(state);
        state.changed = Instant::now();
        outcome
    }

    /// Runs the CPU Manager's periodic reconciliation.
    pub fn reconcile(&self) {
        self.shared.reconcile();
    }

    /// Releases the resources of terminated pods in every manager, which otherwise happens at the next
    /// admission.
    pub fn release_stale(&self) {
        let state = &mut *self.shared.lock();
        state.model.release_stale();
        self.shared.write_checkpoints_or_warn(state);
    }

    /// Changes the hardware. The caller writes its sysfs tree. The kubelet does not detect it before
    /// [`SimKubelet::reset`].
    pub fn set_hardware(&self, hardware: &MachineSpec) {
        self.shared.lock().model.set_hardware(hardware);
    }

    /// Deletes a pod: it leaves the List now and the checkpoints after the release lag. Returns false if
    /// there is no such pod.
    pub fn stop_pod(&self, namespace: &str, name: &str) -> bool {
        let existed = {
            let state = &mut *self.shared.lock();
            state.changed = Instant::now();
            state.model.remove(namespace, name).is_some()
        };
        self.reconcile_later();
        existed
    }

    /// Marks a pod's containers as terminated; the pod object stays. Returns false if there is no such pod.
    pub fn terminate_pod(&self, namespace: &str, name: &str) -> bool {
        let existed = self.shared.lock().model.terminate(namespace, name).is_some();
        self.reconcile_later();
        existed
    }

    fn reconcile_later(&self) {
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

    /// Registers or unregisters a device plugin. Returns false if there is no such plugin.
    pub fn register_plugin(&self, resource: &str, registered: bool) -> bool {
        let exists = self.shared.lock().model.register(resource, registered);
        self.plugins_changed();
        exists
    }

    /// Registers a device plugin with these devices, for the first time or again.
    pub fn offer_devices(&self, resource: &str, devices: &[Device]) {
        self.shared.lock().model.offer(resource, devices);
        self.plugins_changed();
    }

    fn plugins_changed(&self) {
        if let Err(error) = self.open_plugin_sockets() {
            tracing::warn!("{error}");
        }
        let state = &mut *self.shared.lock();
        self.shared.write_checkpoints_or_warn(state);
    }

    /// Sets the health of a device, as its plugin does. Returns false if there is no such device.
    pub fn set_device_health(&self, resource: &str, id: &str, healthy: bool) -> bool {
        let state = &mut *self.shared.lock();
        let exists = state.model.set_health(resource, id, healthy);
        self.shared.write_checkpoints_or_warn(state);
        exists
    }

    /// Restarts the kubelet and returns when it is ready, with the timing of [`Options::restart`]: the socket
    /// and its connections go away and a new socket (another inode) appears, then the managers' inventory,
    /// the pods and the device plugins return one after another.
    ///
    /// # Errors
    /// When a file or a socket cannot be created again.
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

    /// Registers every device plugin.
    pub fn register_plugins(&self) {
        let resources: Vec<String> = self.with_model(|model| model.devices.plugins.keys().cloned().collect());
        for resource in resources {
            self.register_plugin(&resource, true);
        }
    }

    /// Stops the kubelet's process: connections are closed, the socket file is unlinked, pods keep
    /// their resources.
    pub fn stop(&self) {
        lock(&self.serving).take();
        lock(&self.plugin_sockets).clear();
        // It may be gone already.
        let _ = std::fs::remove_file(self.socket());
    }

    /// Ends the kubelet's process like `kill -9`: connections are closed, socket files stay, nothing listens
    /// on them.
    pub fn kill(&self) {
        lock(&self.serving).take();
        lock(&self.plugin_sockets).clear();
    }

    /// Closes the connections that are open now.
    pub fn cut_connections(&self) {
        self.shared.cut_connections();
    }

    /// Listens on a new socket at the same path and creates its directory if necessary. Connections are
    /// closed.
    ///
    /// # Errors
    /// When the socket cannot be created.
    pub fn listen_again(&self) -> Result<(), SimError> {
        lock(&self.serving).take();
        self.listen()
    }

    /// Writes all checkpoints and opens all plugin sockets again after outside interference, and creates
    /// their directories if necessary.
    ///
    /// # Errors
    /// When one of them cannot be created.
    pub fn write_again(&self) -> Result<(), SimError> {
        lock(&self.plugin_sockets).clear();
        let path = self.shared.root.join("device-plugins");
        std::fs::create_dir_all(&path).map_err(|source| SimError { path, source })?;
        self.open_plugin_sockets()?;
        let state = &mut *self.shared.lock();
        state.written.clear();
        self.shared.write_checkpoints(state)
    }

    /// Takes the responses since the last call. The first call returns nothing and starts the recording.
    pub fn take_responses(&self) -> Vec<RecordedResponse> {
        std::mem::take(self.shared.lock().recorded.get_or_insert_default())
    }

    /// The calls so far. The first call of this function starts the recording.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().traffic.get_or_insert_default().clone()
    }

    /// Starts the kubelet's process again, with only the checkpointed state. The caller decides when
    /// managers, pods and plugins are back ([`SimKubelet::restart`] does so by the clock).
    ///
    /// # Errors
    /// When a file or a socket cannot be created again.
    pub fn boot(&self) -> Result<(), SimError> {
        {
            let state = &mut *self.shared.lock();
            state.pods_are_known = false;
            state.managers_are_ready = false;
            state.limiter = Limiter::new(Instant::now());
            state.model.restart();
            state.written.clear();
            self.shared.write_checkpoints(state)?;
        }
        self.open_plugin_sockets()?;
        self.listen()
    }

    /// Discards the checkpoints and the pods, so that the kubelet starts on the current hardware. To be
    /// called between [`SimKubelet::stop`] and [`SimKubelet::boot`].
    pub fn reset(&self) {
        self.shared.lock().model.reset();
    }

    /// Sets, after [`SimKubelet::boot`], whether the managers report their inventory and whether the List
    /// contains pods.
    pub fn set_ready(&self, managers: bool, pods: bool) {
        let state = &mut *self.shared.lock();
        state.managers_are_ready = managers;
        state.pods_are_known = pods;
    }

    /// Injects a fault into the next `times` calls of a method. Faults queue up.
    pub fn fail_next(&self, call: Call, times: usize, fault: &Fault) {
        self.shared.lock().faults.push(call, times, fault);
    }

    /// Drops the queued faults.
    pub fn clear_faults(&self) {
        self.shared.lock().faults.clear();
    }

    /// Changes the simulated version.
    pub fn set_version(&self, version: KubeletVersion) {
        self.shared.lock().model.version = version;
    }

    /// Number of calls of each method.
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.shared.lock().calls
    }

    /// The expected content of `NodeResourceTopology` now.
    #[must_use]
    pub fn expected(&self) -> Expected {
        self.shared.lock().model.expected()
    }

    /// As [`SimKubelet::expected`], with what claims have.
    #[must_use]
    pub fn expected_with(&self, claimed: &Claimed) -> Expected {
        self.shared.lock().model.expected_with(claimed)
    }

    /// When the last admission was complete in both the List and the checkpoints, or the last pod left the
    /// List.
    #[must_use]
    pub fn changed_at(&self) -> Instant {
        self.shared.lock().changed
    }

    /// Calls `read` with the managers' state.
    pub fn with_model<T>(&self, read: impl FnOnce(&Model) -> T) -> T {
        read(&self.shared.lock().model)
    }
}
