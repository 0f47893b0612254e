//! The API server and the notification of its watchers.

use super::*;

impl World {
    /// Creates a pod that is not placed.
    pub(crate) fn create(&mut self, mut pod: Pod) -> PodId {
        let id = self.pods.len();
        pod.object = Some(Seen { bound: false, phase: Phase::Pending, deleted: false });
        self.pods.push(pod);
        self.objects.insert(id);
        self.figures.created += 1;
        self.broadcast(id);
        id
    }

    /// Creates a pod that another scheduler has placed on this node.
    pub(crate) fn create_bound(&mut self, mut pod: Pod, node: NodeId) -> PodId {
        (pod.ours, pod.node) = (false, Some(node));
        let id = self.create(pod);
        self.change(id, |seen| seen.bound = true);
        self.pods[id].bound = Some(self.now);
        self.nodes[node].placed.insert(id);
        id
    }

    /// Creates a static pod's file on the node. Its mirror pod follows later.
    pub(crate) fn create_static(&mut self, mut pod: Pod, node: NodeId) -> PodId {
        let id = self.pods.len();
        (pod.ours, pod.kind, pod.node) = (false, Kind::Static, Some(node));
        pod.bound = Some(self.now);
        self.pods.push(pod);
        self.nodes[node].placed.insert(id);
        if !self.nodes[node].kubelet.down {
            self.kubelet_adds(id);
        }
        id
    }

    pub(super) fn change(&mut self, id: PodId, change: impl FnOnce(&mut Seen)) {
        let Some(mut seen) = self.pods[id].object else { return };
        let before = seen;
        change(&mut seen);
        if seen != before {
            self.pods[id].object = Some(seen);
            self.broadcast(id);
        }
    }

    /// Deletes a pod as users do; with `force`, without waiting for the kubelet.
    pub(crate) fn delete(&mut self, id: PodId, force: bool) {
        let Some(seen) = self.pods[id].object else { return };
        if force || !seen.bound {
            self.remove(id);
        } else {
            self.change(id, |seen| seen.deleted = true);
        }
    }

    /// Removes the object, unless it has a finalizer.
    pub(crate) fn remove(&mut self, id: PodId) {
        if self.pods[id].finalizer {
            self.change(id, |seen| seen.deleted = true);
        } else if self.pods[id].object.take().is_some() {
            self.objects.remove(&id);
            self.notify_controller(Heard::WaitsNoMore(id));
            self.broadcast(id);
        }
    }

    /// Removes the finalizer, and then the object if it is deleted and the kubelet is done with it.
    pub(crate) fn finalize(&mut self, id: PodId) {
        self.pods[id].finalizer = false;
        let kubelet = &self.nodes[self.node_of(id)].kubelet;
        let kubelet_has = kubelet.pods.contains_key(&id) || kubelet.unreported.contains_key(&id);
        if self.pods[id].object.is_some_and(|seen| seen.deleted) && !kubelet_has {
            self.remove(id);
        }
    }

    pub(super) fn broadcast(&mut self, id: PodId) {
        let seen = self.pods[id].object;
        for watcher in [Watcher::Scheduler, Watcher::Plugin] {
            let at = self.notified_at(watcher as usize, self.settings.delays.watch[watcher as usize]);
            self.at(at, Event::Seen { watcher, epoch: 0, pod: id, seen });
        }
        let Some(node) = self.pods[id].node else { return };
        for watcher in [Watcher::Exporter, Watcher::Kubelet] {
            let there = &self.nodes[node];
            let (listens, epoch) = match watcher {
                Watcher::Exporter => (there.watching, there.watch),
                _ => (!there.kubelet.down, there.kubelet.life),
            };
            if listens {
                let at = self.node_notified_at(node, watcher);
                self.at(at, Event::Seen { watcher, epoch, pod: id, seen });
            }
        }
    }

    pub(super) fn notified_at(&mut self, whom: usize, span: Span) -> Time {
        let at = (self.now + self.dice.within(span)).max(self.last_notified[whom]);
        self.last_notified[whom] = at;
        at
    }

    pub(super) fn node_notified_at(&mut self, node: NodeId, watcher: Watcher) -> Time {
        let at = self.now + self.dice.within(self.settings.delays.watch[watcher as usize]);
        let last = &mut self.nodes[node].last_notified[watcher as usize - Watcher::Exporter as usize];
        *last = at.max(*last);
        *last
    }

    pub(super) fn seen(&mut self, watcher: Watcher, epoch: u32, id: PodId, seen: Option<Seen>) {
        let node = self.node_of(id);
        match watcher {
            Watcher::Scheduler => self.scheduler_sees(id, seen),
            Watcher::Plugin => {
                if self.settings.informer == Informer::Dedicated {
                    self.plugin_sees(id, seen);
                }
            }
            Watcher::Exporter => {
                // It only watches the pods of its node.
                let bound = seen.map_or(self.pods[id].bound.is_some(), |seen| seen.bound);
                if epoch == self.nodes[node].watch && bound {
                    self.heard(id);
                    self.notify(node, Signal::Pod(id, seen));
                }
            }
            Watcher::Kubelet => {
                let kubelet = &self.nodes[node].kubelet;
                if epoch == kubelet.life && !kubelet.down && !kubelet.loading {
                    self.kubelet_sees(id, seen);
                }
            }
        }
    }

    pub(super) fn heard(&mut self, id: PodId) {
        let _ = self.pods[id].heard.get_or_insert(self.now);
    }

    pub(super) fn commit(&mut self, node: NodeId, mut object: Object) {
        self.nodes[node].reading_until = 0;
        let before = self.nodes[node].object.as_ref();
        object.nudges = before.map_or(0, |before| before.nudges);
        if before == Some(&object) {
            return;
        }
        let attributes = before.is_some_and(|before| before.policy != object.policy);
        self.figures.writes += 1;
        self.figures.withheld_writes += u64::from(object.withheld);
        for id in &self.nodes[node].placed {
            let pod = &mut self.pods[*id];
            if pod.covered.is_none() && (object.withheld || object.accounts.binary_search(id).is_ok()) {
                pod.covered = Some(self.now);
                if pod.request.exclusive() > 0 && pod.ours {
                    self.figures.windows.push(self.now - pod.reserved.unwrap_or(self.now));
                }
            }
        }
        if attributes {
            let seen = Event::ObjectSeen(node, Box::new(object.clone()));
            self.after(self.settings.delays.object_watch, seen);
        }
        self.nodes[node].object = Some(object);
        self.announce_object();
        self.notify_controller(Heard::Object);
        self.look_at_agreement(node);
    }

    /// Notifies the object watchers of a write.
    pub(super) fn announce_object(&mut self) {
        let at = self.notified_at(OBJECTS, self.settings.delays.object_watch);
        self.at(at, Event::ObjectChanged);
    }

    pub(super) fn look_at_agreement(&mut self, node: NodeId) {
        let node = &mut self.nodes[node];
        let agrees = match (&node.object, node.plugin.expected(&self.pods)) {
            (Some(object), Some(expected)) => agree(expected, object),
            _ => false,
        };
        self.figures.agreement(agrees, &mut node.disagrees, self.now);
    }
}
