//! The kubelet, from the first event of a pod to its end.

use super::*;

impl World {
    pub(super) fn duty(&mut self, node: NodeId, span: Span, duty: Duty) {
        let at = self.now + self.dice.within(span);
        self.duty_at(node, at, duty);
    }

    pub(super) fn duty_at(&mut self, node: NodeId, at: Time, duty: Duty) {
        self.at(at, Event::Kubelet { node, life: self.nodes[node].kubelet.life, duty });
    }

    pub(super) fn kubelet_sees(&mut self, id: PodId, seen: Option<Seen>) {
        let node = self.node_of(id);
        let Some(seen) = seen else {
            // The kubelet did not remove it: it was deleted by force.
            self.nodes[node].kubelet.unreported.remove(&id);
            if self.nodes[node].kubelet.pods.contains_key(&id) && self.pods[id].kind != Kind::Static {
                self.release(id);
            }
            return;
        };
        if self.pods[id].kind == Kind::Static || !seen.bound {
            return;
        }
        let stage = self.nodes[node].kubelet.pods.get(&id).map(|entry| entry.stage);
        match stage {
            None if self.nodes[node].kubelet.unreported.contains_key(&id) => {}
            None if seen.deleted => {
                self.nodes[node].placed.remove(&id);
                self.conclude(id);
            }
            None if !seen.phase.is_terminal() && !self.nodes[node].kubelet.done.contains(&id) => {
                self.kubelet_adds(id);
            }
            Some(Stage::Known) if seen.deleted => {
                self.release(id);
                self.conclude(id);
            }
            Some(Stage::Admitted | Stage::Running) if seen.deleted => self.end_containers(id),
            _ => {}
        }
    }

    /// Ends a deleted pod without running containers: reports its phase and removes its object.
    pub(super) fn conclude(&mut self, id: PodId) {
        let node = self.node_of(id);
        if self.pods[id].object.is_some_and(|seen| seen.phase.is_terminal()) {
            self.duty(node, self.settings.delays.status, Duty::Remove(id));
        } else {
            self.nodes[node].kubelet.unreported.insert(id, Phase::Failed);
            self.duty(node, self.settings.delays.status, Duty::Report(id));
        }
    }

    pub(super) fn end_containers(&mut self, id: PodId) {
        let node = self.node_of(id);
        if let Some(entry) = self.nodes[node].kubelet.pods.get_mut(&id) {
            entry.stage = Stage::Ending;
            let termination = self.pods[id].termination;
            self.duty(node, Span(termination, termination + 20 * MS), Duty::Stop(id));
        }
    }

    pub(super) fn kubelet_adds(&mut self, id: PodId) {
        let node = self.node_of(id);
        let kind = self.pods[id].kind;
        self.nodes[node].kubelet.pods.insert(id, KnownPod { stage: Stage::Known, cpus: 0, kind, ends: 0 });
        self.nodes[node].kubelet.waiting.push_back(id);
        self.kubelet_admits(node);
    }

    pub(super) fn kubelet_admits(&mut self, node: NodeId) {
        if !self.nodes[node].kubelet.busy && !self.nodes[node].kubelet.waiting.is_empty() {
            self.nodes[node].kubelet.busy = true;
            self.duty(node, self.settings.delays.admission, Duty::Admit);
        }
    }

    /// Removes the pod from the kubelet and releases its CPUs.
    pub(super) fn release(&mut self, id: PodId) {
        let node = self.node_of(id);
        self.nodes[node].kubelet.waiting.retain(|other| *other != id);
        let entry = self.nodes[node].kubelet.pods.remove(&id);
        self.nodes[node].kubelet.done.insert(id);
        self.nodes[node].placed.remove(&id);
        if entry.is_some_and(|entry| entry.cpus != 0) {
            self.figures.release(id, self.now);
            self.after(self.settings.delays.file_release, Event::File(node));
        }
    }

    pub(super) fn kubelet_does(&mut self, node: NodeId, duty: Duty) {
        match duty {
            Duty::Admit => self.admit(node),
            Duty::Start(id) => self.start(id),
            Duty::SayRunning(id) => {
                if self.nodes[node].kubelet.pods.get(&id).is_some_and(|entry| entry.stage == Stage::Running) {
                    let now = self.now;
                    if self.pods[id].running.is_none() {
                        self.pods[id].running = Some(now);
                        self.driver_events.push(DriverEvent::Runs(id));
                    }
                    self.change(id, |seen| seen.phase = Phase::Running);
                }
            }
            Duty::Stop(id) => self.stop(id),
            Duty::Report(id) => self.report(id),
            Duty::Remove(id) => self.remove(id),
            Duty::Mirror(id) => self.mirror(id),
            Duty::Load(pod) => self.load(node, pod),
        }
    }

    pub(super) fn admit(&mut self, node: NodeId) {
        self.nodes[node].kubelet.busy = false;
        let Some(id) = self.nodes[node].kubelet.waiting.pop_front() else { return };
        let chosen = self.nodes[node].kubelet.choose(self.pods[id].request);
        if let (Some(cpus), Some(entry)) = (chosen, self.nodes[node].kubelet.pods.get_mut(&id)) {
            (entry.stage, entry.cpus) = (Stage::Admitted, cpus);
            if cpus != 0 {
                self.after(self.settings.delays.file, Event::File(node));
            }
            match self.pods[id].kind {
                Kind::Ordinary => self.duty(node, self.settings.delays.start, Duty::Start(id)),
                Kind::Static => {
                    self.duty(node, self.settings.delays.status, Duty::Mirror(id));
                    self.duty(node, self.settings.delays.start, Duty::Start(id));
                }
                Kind::Unpullable => {}
            }
        } else {
            self.reject(id);
        }
        self.kubelet_admits(node);
    }

    pub(super) fn reject(&mut self, id: PodId) {
        let node = self.node_of(id);
        self.nodes[node].kubelet.pods.remove(&id);
        self.nodes[node].kubelet.done.insert(id);
        self.nodes[node].placed.remove(&id);
        self.figures.reject(id, &self.pods, &self.nodes[node].placed);
        self.nodes[node].kubelet.unreported.insert(id, Phase::Failed);
        self.duty(node, self.settings.delays.status, Duty::Report(id));
        self.driver_events.push(DriverEvent::Rejected(id));
    }

    pub(super) fn start(&mut self, id: PodId) {
        let node = self.node_of(id);
        let (now, life) = (self.now, self.pods[id].life);
        let Some(entry) =
            self.nodes[node].kubelet.pods.get_mut(&id).filter(|entry| entry.stage == Stage::Admitted)
        else {
            return;
        };
        entry.stage = Stage::Running;
        entry.ends = now.saturating_add(life);
        let ends = entry.ends;
        self.figures.start(id, self.pods[id].request.exclusive(), now);
        self.follow_running(id, ends);
    }

    /// Schedules the next duties for a pod with running containers.
    pub(super) fn follow_running(&mut self, id: PodId, ends: Time) {
        let node = self.node_of(id);
        self.duty(node, self.settings.delays.status, Duty::SayRunning(id));
        if ends != Time::MAX {
            let noticed = self.nodes[node].kubelet.next_relist(ends.max(self.now))
                + self.dice.within(Span(MS, 20 * MS));
            self.duty_at(node, noticed, Duty::Stop(id));
        }
    }

    pub(super) fn stop(&mut self, id: PodId) {
        let node = self.node_of(id);
        let Some(entry) = self.nodes[node].kubelet.pods.get(&id).copied() else { return };
        let deleted = self.pods[id].object.is_none_or(|seen| seen.deleted);
        let ran_to_its_end = entry.stage == Stage::Running && entry.ends <= self.now;
        if !(ran_to_its_end || entry.stage == Stage::Ending && deleted) {
            return;
        }
        self.figures.stop(id, self.now.min(entry.ends.max(1)));
        self.release(id);
        self.nodes[node].kubelet.unreported.insert(id, Phase::Succeeded);
        self.duty(node, self.settings.delays.status, Duty::Report(id));
    }

    pub(super) fn report(&mut self, id: PodId) {
        let node = self.node_of(id);
        let Some(phase) = self.nodes[node].kubelet.unreported.remove(&id) else { return };
        self.change(id, |seen| seen.phase = phase);
        self.driver_events.push(DriverEvent::Ended(id));
        if self.pods[id].object.is_some_and(|seen| seen.deleted) {
            self.duty(node, self.settings.delays.removal, Duty::Remove(id));
        }
    }

    pub(super) fn mirror(&mut self, id: PodId) {
        let node = self.node_of(id);
        if self.nodes[node].kubelet.pods.contains_key(&id) && self.pods[id].object.is_none() {
            self.pods[id].object = Some(Seen { bound: true, phase: Phase::Pending, deleted: false });
            self.objects.insert(id);
            self.broadcast(id);
        }
    }

    /// Ends a static pod whose file was removed.
    pub(crate) fn remove_static(&mut self, id: PodId) {
        let node = self.node_of(id);
        if self.nodes[node].kubelet.pods.contains_key(&id) && !self.nodes[node].kubelet.down {
            self.figures.stop(id, self.now);
            self.release(id);
            self.remove(id);
        }
    }

    /// Stops the kubelet; its containers keep running. It is back after `away`.
    pub(crate) fn restart_kubelet(&mut self, node: NodeId, away: Time) {
        if self.nodes[node].kubelet.down {
            return;
        }
        self.nodes[node].kubelet.down = true;
        self.nodes[node].kubelet.life += 1;
        self.nodes[node].kubelet.busy = false;
        // Pods that were not admitted are new to the next process.
        let waiting: Vec<PodId> = self.nodes[node].kubelet.waiting.drain(..).collect();
        for id in waiting {
            self.nodes[node].kubelet.pods.remove(&id);
        }
        self.at(self.now + away, Event::KubeletUp(node));
    }

    pub(super) fn kubelet_up(&mut self, node: NodeId) {
        self.nodes[node].kubelet.down = false;
        self.nodes[node].kubelet.loading = true;
        self.nodes[node].kubelet.loaded.clear();
        let (now, mut last) = (self.now, self.now);
        let pods: Vec<PodId> = self.nodes[node].kubelet.pods.keys().copied().collect();
        let begin = now + self.dice.within(Span(300 * MS, 1000 * MS));
        for id in pods {
            let at = begin + self.dice.within(Span(0, 45 * MS));
            last = last.max(at);
            self.duty_at(node, at, Duty::Load(Some(id)));
        }
        self.duty_at(node, last.max(begin) + MS, Duty::Load(None));
        self.notify(node, Signal::KubeletStarted);
    }

    pub(super) fn load(&mut self, node: NodeId, pod: Option<PodId>) {
        if let Some(id) = pod {
            self.nodes[node].kubelet.loaded.push(id);
            return;
        }
        self.nodes[node].kubelet.loading = false;
        let pods: Vec<(PodId, KnownPod)> =
            self.nodes[node].kubelet.pods.iter().map(|(id, entry)| (*id, *entry)).collect();
        for (id, entry) in pods {
            match entry.stage {
                Stage::Known => {}
                Stage::Admitted if entry.kind != Kind::Unpullable => {
                    self.duty(node, self.settings.delays.start, Duty::Start(id));
                    if entry.kind == Kind::Static {
                        self.duty(node, self.settings.delays.status, Duty::Mirror(id));
                    }
                }
                Stage::Admitted => {}
                Stage::Running => {
                    if entry.kind == Kind::Static {
                        self.duty(node, self.settings.delays.status, Duty::Mirror(id));
                    }
                    self.follow_running(id, entry.ends);
                }
                Stage::Ending => self.end_containers(id),
            }
            if entry.kind != Kind::Static {
                let seen = self.pods[id].object;
                self.kubelet_sees(id, seen);
            }
        }
        let unreported: Vec<PodId> = self.nodes[node].kubelet.unreported.keys().copied().collect();
        for id in unreported {
            self.duty(node, self.settings.delays.status, Duty::Report(id));
        }
        let bound_here = |id: &PodId| self.pods[*id].node == Some(node);
        let objects: Vec<PodId> = self.objects.iter().copied().filter(bound_here).collect();
        for id in objects {
            if !self.nodes[node].kubelet.pods.contains_key(&id) {
                let seen = self.pods[id].object;
                self.kubelet_sees(id, seen);
            }
        }
        let files: Vec<PodId> = self.nodes[node].placed.iter().copied().collect();
        for id in files {
            if self.pods[id].kind == Kind::Static && !self.nodes[node].kubelet.pods.contains_key(&id) {
                self.kubelet_adds(id);
            }
        }
    }
}
