//! The exporter, its faults, and the CPUs that could be used.

use super::*;

impl Simulation {
    pub(super) fn notify(&mut self, node: NodeId, input: ExporterInput) {
        if !self.nodes[node].exporting {
            return;
        }
        if let Some(mut exporter) = self.nodes[node].exporter.take() {
            exporter.handle(self, input);
            self.nodes[node].exporter = Some(exporter);
        }
    }

    /// Calls List; the response is an input.
    pub(crate) fn list(&mut self, node: NodeId) {
        let [to_kubelet, _] = self.settings.delays.list;
        self.measurements.lists += 1;
        self.after(to_kubelet, Event::List { node, epoch: self.nodes[node].process });
    }

    /// Writes the object; the completion is an input.
    pub(crate) fn write(&mut self, node: NodeId, object: Object) {
        let [to_server, back] = self.settings.delays.write;
        let at = self.now + self.rng.within(to_server);
        self.at(at, Event::Commit { node, object: Box::new(object) });
        let done = at + self.rng.within(back);
        let epoch = self.nodes[node].process;
        self.at(done, Event::Exporter { node, epoch, input: Box::new(ExporterInput::Written) });
    }

    /// Sets a timer of the exporter.
    pub(crate) fn wake_at(&mut self, node: NodeId, at: Time, token: u32) {
        let epoch = self.nodes[node].process;
        self.at(at, Event::Exporter { node, epoch, input: Box::new(ExporterInput::Timer(token)) });
    }

    /// Stops or kills the exporter; it starts again after `downtime`.
    pub(crate) fn restart_exporter(&mut self, node: NodeId, downtime: Time, killed: bool) {
        if !killed {
            self.notify(node, ExporterInput::Stopping);
        }
        let state = &mut self.nodes[node];
        state.exporting = false;
        state.watching = false;
        state.process += 1;
        state.watch += 1;
        for id in &state.placed {
            // Bindings that it has received but not acted on are lost.
            if self.pods[*id].accounted_at.is_none() {
                self.pods[*id].received_at = None;
            }
        }
        self.set_driver_timer(self.now + downtime, RESUME_PROCESS | node as u64);
    }

    /// Breaks the exporter's pod watch; it works again after `downtime`.
    pub(crate) fn lose_watch(&mut self, node: NodeId, downtime: Time) {
        let state = &mut self.nodes[node];
        if state.watching && state.exporting {
            state.watching = false;
            state.watch += 1;
            self.notify(node, ExporterInput::WatchLost);
            self.set_driver_timer(self.now + downtime, RESUME_WATCH | node as u64);
        }
    }

    /// Resumes the process or watch of a token. The driver must call this with each token it does not know.
    pub(crate) fn resume(&mut self, token: u64) {
        let (process, watch) = (token & RESUME_PROCESS != 0, token & RESUME_WATCH != 0);
        if !process && !watch {
            return;
        }
        let node = (token & !(RESUME_PROCESS | RESUME_WATCH)) as NodeId;
        if process && !self.nodes[node].exporting {
            let state = &mut self.nodes[node];
            state.exporting = true;
            let is_starting = state.kubelet.down || state.kubelet.loading;
            state.reading_until = if is_starting { self.now + SETTLE } else { 0 };
            self.measurements.restarts += 1;
            self.notify(node, ExporterInput::Started);
        }
        let state = &mut self.nodes[node];
        if process || state.exporting && !state.watching {
            state.watching = true;
            let epoch = state.watch;
            let of_node = |id: &PodId| {
                let pod = &self.pods[*id];
                let state = pod.object.filter(|state| state.bound && pod.node == Some(node))?;
                Some((*id, state))
            };
            let pods = self.objects.iter().filter_map(of_node).collect();
            let at = self.node_notified_at(node, Watcher::Exporter);
            self.at(at, Event::Relisted { node, epoch, pods });
        }
    }

    /// CPUs that pending pods could be allocated now, one pod after another.
    pub(crate) fn idle(&self) -> u32 {
        let mut free: Vec<u32> = self.nodes.iter().flat_map(|node| node.free_by_zone(&self.pods)).collect();
        let mut idle = 0;
        for id in self.queue.pods() {
            let wanted = self.pods[id].request.exclusive();
            if let Some(zone) = free.iter_mut().find(|zone| **zone >= wanted) {
                *zone -= wanted;
                idle += wanted;
            }
        }
        idle
    }
}
