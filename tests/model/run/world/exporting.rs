//! The exporter, its faults, and the CPUs that could be used.

use super::*;

impl World {
    pub(super) fn notify(&mut self, node: NodeId, signal: Signal) {
        if !self.nodes[node].exporting {
            return;
        }
        if let Some(mut exporter) = self.nodes[node].exporter.take() {
            exporter.hear(self, signal);
            self.nodes[node].exporter = Some(exporter);
        }
    }

    /// Calls List; the response is a signal.
    pub(crate) fn list(&mut self, node: NodeId) {
        let [there, _] = self.settings.delays.list;
        self.figures.lists += 1;
        self.after(there, Event::List { node, epoch: self.nodes[node].process });
    }

    /// Writes the object; the completion is a signal.
    pub(crate) fn write(&mut self, node: NodeId, object: Object) {
        let [there, back] = self.settings.delays.write;
        let at = self.now + self.dice.within(there);
        self.at(at, Event::Commit { node, object: Box::new(object) });
        let done = at + self.dice.within(back);
        let epoch = self.nodes[node].process;
        self.at(done, Event::Signal { node, epoch, signal: Box::new(Signal::Written) });
    }

    /// Sets a timer of the exporter.
    pub(crate) fn wake_at(&mut self, node: NodeId, at: Time, token: u32) {
        let epoch = self.nodes[node].process;
        self.at(at, Event::Signal { node, epoch, signal: Box::new(Signal::Timer(token)) });
    }

    /// Stops or kills the exporter; it is back after `away`.
    pub(crate) fn restart_exporter(&mut self, node: NodeId, away: Time, killed: bool) {
        if !killed {
            self.notify(node, Signal::Stopping);
        }
        let there = &mut self.nodes[node];
        there.exporting = false;
        there.watching = false;
        there.process += 1;
        there.watch += 1;
        for id in &there.placed {
            // Bindings that it has received but not acted on are lost.
            if self.pods[*id].covered.is_none() {
                self.pods[*id].heard = None;
            }
        }
        self.drive_at(self.now + away, BACK | node as u64);
    }

    /// Breaks the exporter's pod watch; it is back after `away`.
    pub(crate) fn lose_watch(&mut self, node: NodeId, away: Time) {
        let there = &mut self.nodes[node];
        if there.watching && there.exporting {
            there.watching = false;
            there.watch += 1;
            self.notify(node, Signal::WatchLost);
            self.drive_at(self.now + away, WATCH_BACK | node as u64);
        }
    }

    /// Brings back the process or watch of a token. The driver must call this with each token it does not
    /// know.
    pub(crate) fn comes_back(&mut self, token: u64) {
        let (process, watch) = (token & BACK != 0, token & WATCH_BACK != 0);
        if !process && !watch {
            return;
        }
        let node = (token & !(BACK | WATCH_BACK)) as NodeId;
        if process && !self.nodes[node].exporting {
            let there = &mut self.nodes[node];
            there.exporting = true;
            let starts = there.kubelet.down || there.kubelet.loading;
            there.reading_until = if starts { self.now + SETTLE } else { 0 };
            self.figures.restarts += 1;
            self.notify(node, Signal::Started);
        }
        let there = &mut self.nodes[node];
        if process || there.exporting && !there.watching {
            there.watching = true;
            let epoch = there.watch;
            let of_node = |id: &PodId| {
                let pod = &self.pods[*id];
                let seen = pod.object.filter(|seen| seen.bound && pod.node == Some(node))?;
                Some((*id, seen))
            };
            let pods = self.objects.iter().filter_map(of_node).collect();
            let at = self.node_notified_at(node, Watcher::Exporter);
            self.at(at, Event::Relisted { node, epoch, pods });
        }
    }

    /// CPUs that waiting pods could be allocated now, one pod after another.
    pub(crate) fn idle(&self) -> u32 {
        let mut free: Vec<u32> = self.nodes.iter().flat_map(|node| node.free_by_zone(&self.pods)).collect();
        let mut idle = 0;
        for id in self.queue.waiting() {
            let wanted = self.pods[id].request.exclusive();
            if let Some(zone) = free.iter_mut().find(|zone| **zone >= wanted) {
                *zone -= wanted;
                idle += wanted;
            }
        }
        idle
    }
}
