//! The kubelet, from the first event of a pod to its end.

use super::*;

impl Simulation {
    pub(super) fn schedule_task(&mut self, node: NodeId, span: Span, task: KubeletTask) {
        let at = self.now + self.rng.within(span);
        self.schedule_task_at(node, at, task);
    }

    pub(super) fn schedule_task_at(&mut self, node: NodeId, at: Time, task: KubeletTask) {
        self.at(at, Event::Kubelet { node, starts: self.nodes[node].kubelet.starts, task });
    }

    pub(super) fn kubelet_receives(&mut self, id: PodId, state: Option<PodState>) {
        let node = self.node_of(id);
        let Some(state) = state else {
            // The kubelet did not remove it: it was deleted by force.
            self.nodes[node].kubelet.unreported.remove(&id);
            if self.nodes[node].kubelet.pods.contains_key(&id) && self.pods[id].kind != Kind::Static {
                self.release(id);
            }
            return;
        };
        if self.pods[id].kind == Kind::Static || !state.bound {
            return;
        }
        let stage = self.nodes[node].kubelet.pods.get(&id).map(|entry| entry.stage);
        match stage {
            None if self.nodes[node].kubelet.unreported.contains_key(&id) => {}
            None if state.deleted => {
                self.nodes[node].placed.remove(&id);
                self.finish_deletion(id);
            }
            None if !state.phase.is_terminal() && !self.nodes[node].kubelet.released.contains(&id) => {
                self.kubelet_adds(id);
            }
            Some(Stage::Pending) if state.deleted => {
                self.release(id);
                self.finish_deletion(id);
            }
            Some(Stage::Admitted | Stage::Running) if state.deleted => self.end_containers(id),
            _ => {}
        }
    }

    /// Ends a deleted pod without running containers: reports its phase and removes its object.
    pub(super) fn finish_deletion(&mut self, id: PodId) {
        let node = self.node_of(id);
        if self.pods[id].object.is_some_and(|state| state.phase.is_terminal()) {
            self.schedule_task(node, self.settings.delays.status, KubeletTask::Remove(id));
        } else {
            self.nodes[node].kubelet.unreported.insert(id, Phase::Failed);
            self.schedule_task(node, self.settings.delays.status, KubeletTask::Report(id));
        }
    }

    pub(super) fn end_containers(&mut self, id: PodId) {
        let node = self.node_of(id);
        if let Some(entry) = self.nodes[node].kubelet.pods.get_mut(&id) {
            entry.stage = Stage::Terminating;
            let termination = self.pods[id].termination;
            self.schedule_task(node, Span(termination, termination + 20 * MS), KubeletTask::Stop(id));
        }
    }

    pub(super) fn kubelet_adds(&mut self, id: PodId) {
        let node = self.node_of(id);
        let kind = self.pods[id].kind;
        self.nodes[node].kubelet.pods.insert(id, KnownPod { stage: Stage::Pending, cpus: 0, kind, ends: 0 });
        self.nodes[node].kubelet.waiting.push_back(id);
        self.kubelet_admits(node);
    }

    pub(super) fn kubelet_admits(&mut self, node: NodeId) {
        if !self.nodes[node].kubelet.busy && !self.nodes[node].kubelet.waiting.is_empty() {
            self.nodes[node].kubelet.busy = true;
            self.schedule_task(node, self.settings.delays.admission, KubeletTask::Admit);
        }
    }

    /// Removes the pod from the kubelet and releases its CPUs.
    pub(super) fn release(&mut self, id: PodId) {
        let node = self.node_of(id);
        self.nodes[node].kubelet.waiting.retain(|other| *other != id);
        let entry = self.nodes[node].kubelet.pods.remove(&id);
        self.nodes[node].kubelet.released.insert(id);
        self.nodes[node].placed.remove(&id);
        if entry.is_some_and(|entry| entry.cpus != 0) {
            self.measurements.release(id, self.now);
            self.after(self.settings.delays.checkpoint_release, Event::Checkpoint(node));
        }
    }

    pub(super) fn run_task(&mut self, node: NodeId, task: KubeletTask) {
        match task {
            KubeletTask::Admit => self.admit(node),
            KubeletTask::Start(id) => self.start(id),
            KubeletTask::ReportRunning(id) => {
                if self.nodes[node].kubelet.pods.get(&id).is_some_and(|entry| entry.stage == Stage::Running) {
                    let now = self.now;
                    if self.pods[id].running.is_none() {
                        self.pods[id].running = Some(now);
                        self.driver_events.push(DriverEvent::Running(id));
                    }
                    self.change(id, |state| state.phase = Phase::Running);
                }
            }
            KubeletTask::Stop(id) => self.stop(id),
            KubeletTask::Report(id) => self.report(id),
            KubeletTask::Remove(id) => self.remove(id),
            KubeletTask::Mirror(id) => self.mirror(id),
            KubeletTask::Load(pod) => self.load(node, pod),
        }
    }

    pub(super) fn admit(&mut self, node: NodeId) {
        self.nodes[node].kubelet.busy = false;
        let Some(id) = self.nodes[node].kubelet.waiting.pop_front() else { return };
        let chosen = self.nodes[node].kubelet.choose(self.pods[id].request);
        if let (Some(cpus), Some(entry)) = (chosen, self.nodes[node].kubelet.pods.get_mut(&id)) {
            (entry.stage, entry.cpus) = (Stage::Admitted, cpus);
            if cpus != 0 {
                self.after(self.settings.delays.checkpoint, Event::Checkpoint(node));
            }
            match self.pods[id].kind {
                Kind::Ordinary => {
                    self.schedule_task(node, self.settings.delays.start, KubeletTask::Start(id));
                }
                Kind::Static => {
                    self.schedule_task(node, self.settings.delays.status, KubeletTask::Mirror(id));
                    self.schedule_task(node, self.settings.delays.start, KubeletTask::Start(id));
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
        self.nodes[node].kubelet.released.insert(id);
        self.nodes[node].placed.remove(&id);
        self.measurements.reject(id, &self.pods, &self.nodes[node].placed);
        self.nodes[node].kubelet.unreported.insert(id, Phase::Failed);
        self.schedule_task(node, self.settings.delays.status, KubeletTask::Report(id));
        self.driver_events.push(DriverEvent::Rejected(id));
    }

    pub(super) fn start(&mut self, id: PodId) {
        let node = self.node_of(id);
        let (now, run_time) = (self.now, self.pods[id].run_time);
        let Some(entry) =
            self.nodes[node].kubelet.pods.get_mut(&id).filter(|entry| entry.stage == Stage::Admitted)
        else {
            return;
        };
        entry.stage = Stage::Running;
        entry.ends = now.saturating_add(run_time);
        let ends = entry.ends;
        self.measurements.start(id, self.pods[id].request.exclusive(), now);
        self.schedule_running(id, ends);
    }

    /// Schedules the next tasks for a pod with running containers.
    pub(super) fn schedule_running(&mut self, id: PodId, ends: Time) {
        let node = self.node_of(id);
        self.schedule_task(node, self.settings.delays.status, KubeletTask::ReportRunning(id));
        if ends != Time::MAX {
            let detected =
                self.nodes[node].kubelet.next_relist(ends.max(self.now)) + self.rng.within(Span(MS, 20 * MS));
            self.schedule_task_at(node, detected, KubeletTask::Stop(id));
        }
    }

    pub(super) fn stop(&mut self, id: PodId) {
        let node = self.node_of(id);
        let Some(entry) = self.nodes[node].kubelet.pods.get(&id).copied() else { return };
        let deleted = self.pods[id].object.is_none_or(|state| state.deleted);
        let has_completed = entry.stage == Stage::Running && entry.ends <= self.now;
        if !(has_completed || entry.stage == Stage::Terminating && deleted) {
            return;
        }
        self.measurements.stop(id, self.now.min(entry.ends.max(1)));
        self.release(id);
        self.nodes[node].kubelet.unreported.insert(id, Phase::Succeeded);
        self.schedule_task(node, self.settings.delays.status, KubeletTask::Report(id));
    }

    pub(super) fn report(&mut self, id: PodId) {
        let node = self.node_of(id);
        let Some(phase) = self.nodes[node].kubelet.unreported.remove(&id) else { return };
        self.change(id, |state| state.phase = phase);
        self.driver_events.push(DriverEvent::Terminated(id));
        if self.pods[id].object.is_some_and(|state| state.deleted) {
            self.schedule_task(node, self.settings.delays.removal, KubeletTask::Remove(id));
        }
    }

    pub(super) fn mirror(&mut self, id: PodId) {
        let node = self.node_of(id);
        if self.nodes[node].kubelet.pods.contains_key(&id) && self.pods[id].object.is_none() {
            self.pods[id].object = Some(PodState { bound: true, phase: Phase::Pending, deleted: false });
            self.objects.insert(id);
            self.broadcast(id);
        }
    }

    /// Ends a static pod whose file was removed.
    pub(crate) fn remove_static(&mut self, id: PodId) {
        let node = self.node_of(id);
        if self.nodes[node].kubelet.pods.contains_key(&id) && !self.nodes[node].kubelet.down {
            self.measurements.stop(id, self.now);
            self.release(id);
            self.remove(id);
        }
    }

    /// Stops the kubelet; its containers keep running. It starts again after `downtime`.
    pub(crate) fn restart_kubelet(&mut self, node: NodeId, downtime: Time) {
        if self.nodes[node].kubelet.down {
            return;
        }
        self.nodes[node].kubelet.down = true;
        self.nodes[node].kubelet.starts += 1;
        self.nodes[node].kubelet.busy = false;
        // Pods that were not admitted are new to the next process.
        let waiting: Vec<PodId> = self.nodes[node].kubelet.waiting.drain(..).collect();
        for id in waiting {
            self.nodes[node].kubelet.pods.remove(&id);
        }
        self.at(self.now + downtime, Event::KubeletUp(node));
    }

    pub(super) fn kubelet_up(&mut self, node: NodeId) {
        self.nodes[node].kubelet.down = false;
        self.nodes[node].kubelet.loading = true;
        self.nodes[node].kubelet.loaded.clear();
        let (now, mut last) = (self.now, self.now);
        let pods: Vec<PodId> = self.nodes[node].kubelet.pods.keys().copied().collect();
        let begin = now + self.rng.within(Span(300 * MS, 1000 * MS));
        for id in pods {
            let at = begin + self.rng.within(Span(0, 45 * MS));
            last = last.max(at);
            self.schedule_task_at(node, at, KubeletTask::Load(Some(id)));
        }
        self.schedule_task_at(node, last.max(begin) + MS, KubeletTask::Load(None));
        self.notify(node, ExporterInput::KubeletStarted);
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
                Stage::Pending => {}
                Stage::Admitted if entry.kind != Kind::Unpullable => {
                    self.schedule_task(node, self.settings.delays.start, KubeletTask::Start(id));
                    if entry.kind == Kind::Static {
                        self.schedule_task(node, self.settings.delays.status, KubeletTask::Mirror(id));
                    }
                }
                Stage::Admitted => {}
                Stage::Running => {
                    if entry.kind == Kind::Static {
                        self.schedule_task(node, self.settings.delays.status, KubeletTask::Mirror(id));
                    }
                    self.schedule_running(id, entry.ends);
                }
                Stage::Terminating => self.end_containers(id),
            }
            if entry.kind != Kind::Static {
                let state = self.pods[id].object;
                self.kubelet_receives(id, state);
            }
        }
        let unreported: Vec<PodId> = self.nodes[node].kubelet.unreported.keys().copied().collect();
        for id in unreported {
            self.schedule_task(node, self.settings.delays.status, KubeletTask::Report(id));
        }
        let bound_here = |id: &PodId| self.pods[*id].node == Some(node);
        let objects: Vec<PodId> = self.objects.iter().copied().filter(bound_here).collect();
        for id in objects {
            if !self.nodes[node].kubelet.pods.contains_key(&id) {
                let state = self.pods[id].object;
                self.kubelet_receives(id, state);
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
