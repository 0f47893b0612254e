//! The scheduler: its informers, its cycles and the plugin's ticks.

use super::*;

impl World {
    pub(super) fn scheduler_sees(&mut self, id: PodId, seen: Option<Seen>) {
        if self.settings.informer == Informer::Shared {
            self.plugin_sees(id, seen);
        }
        match seen.filter(|seen| !seen.phase.is_terminal()) {
            Some(seen) if seen.bound => {
                if !self.on_node.contains(&id) {
                    self.on_node.push(id);
                }
            }
            Some(_) => {
                let fresh = !self.queue.waiting().any(|waiting| waiting == id);
                if fresh && self.pods[id].reserved.is_none() && self.pods[id].ours {
                    self.queue.add(id, self.now);
                }
            }
            None => {
                let was_here = self.on_node.contains(&id);
                self.on_node.retain(|other| *other != id);
                self.queue.remove(id);
                if was_here {
                    self.queue.happens(Move::PodGone, self.now);
                }
            }
        }
        self.schedule();
    }

    pub(super) fn plugin_sees(&mut self, id: PodId, seen: Option<Seen>) {
        self.plugin.see(id, &self.pods[id], seen);
        self.look_at_agreement();
    }

    pub(super) fn schedule(&mut self) {
        if !self.scheduling {
            self.at(self.now, Event::Cycle);
        }
    }

    pub(super) fn cycle(&mut self) {
        if self.scheduling {
            return;
        }
        let Some(id) = self.queue.pop() else { return };
        self.scheduling = true;
        let request = self.pods[id].request;
        let used: u32 = self.on_node.iter().map(|pod| self.pods[*pod].request.milli).sum();
        let total = self.settings.zones.iter().sum::<u32>() * 1000;
        let rejector = if used + request.milli > total {
            Some(Rejector::Resources)
        } else if self.settings.plugin && self.plugin.filter(request, &self.pods) != Filter::Pass {
            Some(Rejector::Topology)
        } else {
            self.pods[id].blind = self.unknown_to_plugin();
            self.pods[id].passed = Some(self.now);
            None
        };
        self.figures.cycles += 1;
        self.after(self.settings.delays.cycle, Event::CycleEnds { pod: id, rejector });
    }

    /// Placed pods with CPUs of their own that neither the plugin's object accounts for nor its memory.
    pub(super) fn unknown_to_plugin(&self) -> Vec<PodId> {
        let accounts = self.plugin.cached.as_ref().map_or(&[][..], |cached| &cached.accounts);
        let unknown = |id: &&PodId| {
            let pod = &self.pods[**id];
            // Who was deleted before the kubelet let it in will not get anything, and who was deleted by force loses it
            // before the kubelet hears of the next pod.
            let comes = pod.object.is_some_and(|seen| !seen.deleted) || pod.kind == Kind::Static;
            let holds = self.kubelet.pods.get(id).is_some_and(|held| held.cpus != 0);
            pod.request.exclusive() > 0
                && (comes || holds && pod.object.is_some())
                && !self.plugin.assumed.contains(id)
                && accounts.binary_search(id).is_err()
        };
        self.placed.iter().filter(unknown).copied().collect()
    }

    pub(super) fn cycle_ends(&mut self, id: PodId, rejector: Option<Rejector>) {
        self.scheduling = false;
        if self.pods[id].object.is_none() {
            self.queue.dropped();
        } else if let Some(rejector) = rejector {
            self.queue.rejected(rejector, self.now);
        } else {
            self.queue.placed();
            self.plugin.reserve(id, &self.pods);
            self.on_node.push(id);
            self.pods[id].reserved = Some(self.now);
            self.placed.insert(id);
            if self.object.as_ref().is_some_and(|object| object.held) {
                self.pods[id].covered = Some(self.now);
                self.figures.windows.push(0);
            }
            self.after(self.settings.delays.bind, Event::Bind(id));
        }
        self.schedule();
    }

    pub(super) fn bind(&mut self, id: PodId) {
        if self.pods[id].object.is_none() {
            // Deleted meanwhile.
            self.plugin.unreserve(id);
            self.on_node.retain(|other| *other != id);
            self.placed.remove(&id);
            self.queue.happens(Move::PodGone, self.now);
            self.schedule();
            return;
        }
        self.pods[id].bound = Some(self.now);
        self.change(id, |seen| seen.bound = true);
    }

    pub(super) fn tick(&mut self) {
        if !self.settings.plugin || !self.plugin.is_dirty() {
            self.at(self.now + self.settings.resync, Event::Tick);
            return;
        }
        self.figures.dirty_ticks += 1;
        let expected = self.plugin.expected(&self.pods);
        self.after(self.settings.delays.read, Event::TickRead(expected));
    }

    pub(super) fn tick_read(&mut self, expected: Option<Expected>) {
        let believed = self.object.clone().filter(|object| self.plugin.believes(expected, object));
        let read = self.now;
        self.after(self.settings.delays.flush, Event::TickFlush { object: believed.map(Box::new), read });
    }

    pub(super) fn tick_flush(&mut self, object: Option<Box<Object>>, read: Time) {
        self.at(self.now + self.settings.resync, Event::Tick);
        let Some(object) = object else { return };
        let before = self.unknown_to_plugin();
        self.plugin.flush(*object);
        if self.settings.oracle {
            self.at(self.now + MS, Event::ObjectChanged);
        }
        for id in self.unknown_to_plugin() {
            if !before.contains(&id) {
                let grace = self.settings.grace;
                let excused = self.pods[id].heard.is_none_or(|heard| read <= heard + grace);
                self.pods[id].forgotten = Some(Forgotten { read, excused });
                self.figures.forgotten += 1;
                self.figures.forgotten_late += u64::from(!excused);
            }
        }
    }
}
