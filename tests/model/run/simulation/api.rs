//! The API server and the notification of its watchers.

use super::*;

impl Simulation {
    /// Creates a pod that is not placed.
    pub(crate) fn create(&mut self, mut pod: Pod) -> PodId {
        let id = self.pods.len();
        pod.object = Some(PodState { bound: false, phase: Phase::Pending, deleted: false });
        self.pods.push(pod);
        self.objects.insert(id);
        self.measurements.created += 1;
        self.broadcast(id);
        id
    }

    /// Creates a pod that another scheduler has placed on this node.
    pub(crate) fn create_bound(&mut self, mut pod: Pod, node: NodeId) -> PodId {
        (pod.own_scheduler, pod.node) = (false, Some(node));
        let id = self.create(pod);
        self.change(id, |state| state.bound = true);
        self.pods[id].bound = Some(self.now);
        self.nodes[node].placed.insert(id);
        id
    }

    /// Creates a static pod's file on the node. Its mirror pod follows later.
    pub(crate) fn create_static(&mut self, mut pod: Pod, node: NodeId) -> PodId {
        let id = self.pods.len();
        (pod.own_scheduler, pod.kind, pod.node) = (false, Kind::Static, Some(node));
        pod.bound = Some(self.now);
        self.pods.push(pod);
        self.nodes[node].placed.insert(id);
        if !self.nodes[node].kubelet.down {
            self.kubelet_adds(id);
        }
        id
    }

    pub(super) fn change(&mut self, id: PodId, change: impl FnOnce(&mut PodState)) {
        let Some(mut state) = self.pods[id].object else { return };
        let before = state;
        change(&mut state);
        if state != before {
            self.pods[id].object = Some(state);
            self.broadcast(id);
        }
    }

    /// Deletes a pod as users do; with `force`, without waiting for the kubelet.
    pub(crate) fn delete(&mut self, id: PodId, force: bool) {
        let Some(state) = self.pods[id].object else { return };
        if force || !state.bound {
            self.remove(id);
        } else {
            self.change(id, |state| state.deleted = true);
        }
    }

    /// Removes the object, unless it has a finalizer.
    pub(crate) fn remove(&mut self, id: PodId) {
        if self.pods[id].finalizer {
            self.change(id, |state| state.deleted = true);
        } else if self.pods[id].object.take().is_some() {
            self.objects.remove(&id);
            self.notify_controller(ControllerInput::NotPending(id));
            self.broadcast(id);
        }
    }

    /// Removes the finalizer, and then the object if it is deleted and the kubelet has released it.
    pub(crate) fn finalize(&mut self, id: PodId) {
        self.pods[id].finalizer = false;
        let kubelet = &self.nodes[self.node_of(id)].kubelet;
        let is_in_kubelet = kubelet.pods.contains_key(&id) || kubelet.unreported.contains_key(&id);
        if self.pods[id].object.is_some_and(|state| state.deleted) && !is_in_kubelet {
            self.remove(id);
        }
    }

    pub(super) fn broadcast(&mut self, id: PodId) {
        let state = self.pods[id].object;
        for watcher in [Watcher::Scheduler, Watcher::Plugin] {
            let at = self.notified_at(watcher as usize, self.settings.delays.watch[watcher as usize]);
            self.at(at, Event::PodChanged { watcher, epoch: 0, pod: id, state });
        }
        let Some(node) = self.pods[id].node else { return };
        for watcher in [Watcher::Exporter, Watcher::Kubelet] {
            let node_state = &self.nodes[node];
            let (is_watching, epoch) = match watcher {
                Watcher::Exporter => (node_state.watching, node_state.watch),
                _ => (!node_state.kubelet.down, node_state.kubelet.starts),
            };
            if is_watching {
                let at = self.node_notified_at(node, watcher);
                self.at(at, Event::PodChanged { watcher, epoch, pod: id, state });
            }
        }
    }

    pub(super) fn notified_at(&mut self, watcher: usize, span: Span) -> Time {
        let at = (self.now + self.rng.within(span)).max(self.last_notified[watcher]);
        self.last_notified[watcher] = at;
        at
    }

    pub(super) fn node_notified_at(&mut self, node: NodeId, watcher: Watcher) -> Time {
        let at = self.now + self.rng.within(self.settings.delays.watch[watcher as usize]);
        let last = &mut self.nodes[node].last_notified[watcher as usize - Watcher::Exporter as usize];
        *last = at.max(*last);
        *last
    }

    /// Delivers a change of a pod.
    pub(super) fn deliver(&mut self, watcher: Watcher, epoch: u32, id: PodId, state: Option<PodState>) {
        let node = self.node_of(id);
        match watcher {
            Watcher::Scheduler => self.scheduler_receives(id, state),
            Watcher::Plugin => {
                if self.settings.informer == Informer::Dedicated {
                    self.plugin_receives(id, state);
                }
            }
            Watcher::Exporter => {
                // It only watches the pods of its node.
                let bound = state.map_or(self.pods[id].bound.is_some(), |state| state.bound);
                if epoch == self.nodes[node].watch && bound {
                    self.record_received(id);
                    self.notify(node, ExporterInput::Pod(id, state));
                }
            }
            Watcher::Kubelet => {
                let kubelet = &self.nodes[node].kubelet;
                if epoch == kubelet.starts && !kubelet.down && !kubelet.loading {
                    self.kubelet_receives(id, state);
                }
            }
        }
    }

    pub(super) fn record_received(&mut self, id: PodId) {
        let _ = self.pods[id].received_at.get_or_insert(self.now);
    }

    pub(super) fn commit(&mut self, node: NodeId, mut object: Object) {
        self.nodes[node].reading_until = 0;
        let before = self.nodes[node].object.as_ref();
        object.nudges = before.map_or(0, |before| before.nudges);
        if before == Some(&object) {
            return;
        }
        let attributes = before.is_some_and(|before| before.policy != object.policy);
        self.measurements.writes += 1;
        self.measurements.withheld_writes += u64::from(object.withheld);
        for id in &self.nodes[node].placed {
            let pod = &mut self.pods[*id];
            if pod.accounted_at.is_none() && (object.withheld || object.accounts.binary_search(id).is_ok()) {
                pod.accounted_at = Some(self.now);
                if pod.request.exclusive() > 0 && pod.own_scheduler {
                    self.measurements.windows.push(self.now - pod.reserved.unwrap_or(self.now));
                }
            }
        }
        if attributes {
            let event = Event::AttributesChanged(node, Box::new(object.clone()));
            self.after(self.settings.delays.object_watch, event);
        }
        self.nodes[node].object = Some(object);
        self.notify_object_watchers();
        self.notify_controller(ControllerInput::ObjectChanged);
        self.record_agreement(node);
    }

    /// Notifies the object watchers of a write.
    pub(super) fn notify_object_watchers(&mut self) {
        let at = self.notified_at(OBJECTS, self.settings.delays.object_watch);
        self.at(at, Event::ObjectChanged);
    }

    pub(super) fn record_agreement(&mut self, node: NodeId) {
        let node = &mut self.nodes[node];
        let matches = match (&node.object, node.plugin.expected(&self.pods)) {
            (Some(object), Some(expected)) => matches_expected(expected, object),
            _ => false,
        };
        self.measurements.agreement(matches, &mut node.disagrees_since, self.now);
    }
}
