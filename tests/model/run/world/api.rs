//! What the API server does, and who hears of it.

use super::*;

impl World {
    /// A new pod that nobody has placed.
    pub(crate) fn create(&mut self, mut pod: Pod) -> PodId {
        let id = self.pods.len();
        pod.object = Some(Seen { bound: false, phase: Phase::Pending, deleted: false });
        self.pods.push(pod);
        self.objects.insert(id);
        self.figures.created += 1;
        self.broadcast(id);
        id
    }

    /// A new pod that somebody else has placed here.
    pub(crate) fn create_bound(&mut self, mut pod: Pod) -> PodId {
        pod.ours = false;
        let id = self.create(pod);
        self.change(id, |seen| seen.bound = true);
        self.pods[id].bound = Some(self.now);
        self.placed.insert(id);
        id
    }

    /// A new file on the node; the API server has a copy of the pod later.
    pub(crate) fn create_static(&mut self, mut pod: Pod) -> PodId {
        let id = self.pods.len();
        (pod.ours, pod.kind) = (false, Kind::Static);
        pod.bound = Some(self.now);
        self.pods.push(pod);
        self.placed.insert(id);
        if !self.kubelet.down {
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

    /// Deletes a pod as people do; `force`: without waiting for the kubelet.
    pub(crate) fn delete(&mut self, id: PodId, force: bool) {
        let Some(seen) = self.pods[id].object else { return };
        if force || !seen.bound {
            self.remove(id);
        } else {
            self.change(id, |seen| seen.deleted = true);
        }
    }

    /// Ends the object, unless a finalizer holds it.
    pub(crate) fn remove(&mut self, id: PodId) {
        if self.pods[id].finalizer {
            self.change(id, |seen| seen.deleted = true);
        } else if self.pods[id].object.take().is_some() {
            self.objects.remove(&id);
            self.broadcast(id);
        }
    }

    /// Nothing holds the object any more.
    pub(crate) fn finalize(&mut self, id: PodId) {
        self.pods[id].finalizer = false;
        let kubelet_has = self.kubelet.pods.contains_key(&id) || self.kubelet.unreported.contains_key(&id);
        if self.pods[id].object.is_some_and(|seen| seen.deleted) && !kubelet_has {
            self.remove(id);
        }
    }

    pub(super) fn broadcast(&mut self, id: PodId) {
        let seen = self.pods[id].object;
        for watcher in WATCHERS {
            if watcher == Watcher::Exporter && !self.watching
                || watcher == Watcher::Kubelet && self.kubelet.down
            {
                continue;
            }
            let epoch = match watcher {
                Watcher::Exporter => self.watch,
                Watcher::Kubelet => self.kubelet.life,
                _ => 0,
            };
            let at = self.told_at(watcher as usize, self.settings.delays.watch[watcher as usize]);
            self.at(at, Event::Seen { watcher, epoch, pod: id, seen });
        }
    }

    pub(super) fn told_at(&mut self, whom: usize, span: Span) -> Time {
        let at = (self.now + self.dice.within(span)).max(self.last_told[whom]);
        self.last_told[whom] = at;
        at
    }

    pub(super) fn seen(&mut self, watcher: Watcher, epoch: u32, id: PodId, seen: Option<Seen>) {
        match watcher {
            Watcher::Scheduler => self.scheduler_sees(id, seen),
            Watcher::Plugin => {
                if self.settings.informer == Informer::Dedicated {
                    self.plugin_sees(id, seen);
                }
            }
            Watcher::Exporter => {
                // It follows the pods of its node.
                if epoch == self.watch && seen.map_or(self.pods[id].bound.is_some(), |seen| seen.bound) {
                    self.heard(id);
                    self.tell(Signal::Pod(id, seen));
                }
            }
            Watcher::Kubelet => {
                if epoch == self.kubelet.life && !self.kubelet.down && !self.kubelet.loading {
                    self.kubelet_sees(id, seen);
                }
            }
        }
    }

    pub(super) fn heard(&mut self, id: PodId) {
        let _ = self.pods[id].heard.get_or_insert(self.now);
    }

    pub(super) fn commit(&mut self, object: Object) {
        if self.object.as_ref() == Some(&object) {
            return;
        }
        let attributes = self.object.as_ref().is_some_and(|before| before.policy != object.policy);
        let counter_only = self
            .object
            .as_ref()
            .is_some_and(|before| Object { counter: object.counter, ..before.clone() } == object);
        if counter_only {
            self.figures.nudges += 1;
        }
        self.figures.writes += 1;
        self.figures.holds += u64::from(object.held);
        for id in &self.placed {
            let pod = &mut self.pods[*id];
            if pod.covered.is_none() && (object.held || object.accounts.binary_search(id).is_ok()) {
                pod.covered = Some(self.now);
                if pod.request.exclusive() > 0 && pod.ours {
                    self.figures.windows.push(self.now - pod.reserved.unwrap_or(self.now));
                }
            }
        }
        if attributes {
            self.after(self.settings.delays.object_watch, Event::ObjectSeen(Box::new(object.clone())));
        }
        self.object = Some(object);
        let at = self.told_at(4, self.settings.delays.object_watch);
        self.at(at, Event::ObjectChanged);
        self.look_at_agreement();
    }

    pub(super) fn look_at_agreement(&mut self) {
        let expected = self.plugin.expected(&self.pods);
        let agrees = match (&self.object, expected) {
            (Some(object), Some(expected)) => agree(expected, object),
            _ => false,
        };
        self.figures.agreement(agrees, self.now);
    }
}
