//! The exporter, what happens to it, and what could be had.

use super::*;

impl World {
    pub(super) fn tell(&mut self, signal: Signal) {
        if !self.exporting {
            return;
        }
        if let Some(mut exporter) = self.exporter.take() {
            exporter.hear(self, signal);
            self.exporter = Some(exporter);
        }
    }

    /// Asks the kubelet; the answer is a signal.
    pub(crate) fn list(&mut self) {
        let [there, _] = self.settings.delays.list;
        self.figures.lists += 1;
        self.after(there, Event::List { epoch: self.process });
    }

    /// Writes; that it is done is a signal.
    pub(crate) fn write(&mut self, object: Object) {
        let [there, back] = self.settings.delays.write;
        let at = self.now + self.dice.within(there);
        self.at(at, Event::Commit(Box::new(object)));
        let done = at + self.dice.within(back);
        self.at(done, Event::Signal { epoch: self.process, signal: Box::new(Signal::Written) });
    }

    /// Wakes the exporter.
    pub(crate) fn wake_at(&mut self, at: Time, token: u32) {
        self.at(at, Event::Signal { epoch: self.process, signal: Box::new(Signal::Timer(token)) });
    }

    /// The exporter is told to end, or is killed, and is back after `away`.
    pub(crate) fn restart_exporter(&mut self, away: Time, killed: bool) {
        if !killed {
            self.tell(Signal::Stopping);
        }
        self.exporting = false;
        self.watching = false;
        self.process += 1;
        self.watch += 1;
        for id in &self.placed {
            // What it heard without acting on it is forgotten.
            if self.pods[*id].covered.is_none() {
                self.pods[*id].heard = None;
            }
        }
        self.drive_at(self.now + away, BACK);
    }

    /// The exporter's watch of pods breaks and is back after `away`.
    pub(crate) fn lose_watch(&mut self, away: Time) {
        if self.watching && self.exporting {
            self.watching = false;
            self.watch += 1;
            self.tell(Signal::WatchLost);
            self.drive_at(self.now + away, WATCH_BACK);
        }
    }

    /// What the driver is to call with each token it does not know.
    pub(crate) fn comes_back(&mut self, token: u64) {
        if token == BACK && !self.exporting {
            self.exporting = true;
            self.figures.restarts += 1;
            self.tell(Signal::Started);
        }
        if token == BACK || token == WATCH_BACK && self.exporting && !self.watching {
            self.watching = true;
            let known = |id: &PodId| Some((*id, self.pods[*id].object.filter(|seen| seen.bound)?));
            let pods = self.objects.iter().filter_map(known).collect();
            let at = self.told_at(Watcher::Exporter as usize, self.settings.delays.watch[2]);
            self.at(at, Event::Relisted { epoch: self.watch, pods });
        }
    }

    /// CPUs that pods which wait could have now, one after the other.
    pub(crate) fn idle(&self) -> u32 {
        let mut free = self.kubelet.free_by_zone();
        for id in &self.placed {
            // Placed, but not admitted yet.
            let wanted = self.pods[*id].request.exclusive();
            let admitted = self.kubelet.pods.get(id).is_some_and(|held| held.stage != Stage::Known);
            let zone = free.iter_mut().find(|zone| !admitted && **zone >= wanted);
            if let Some(zone) = zone {
                *zone -= wanted;
            }
        }
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
