//! The cluster's controller: its inputs and its nudges.

use super::*;

impl World {
    /// Sends the controller an event of the API server, with the latency of a watch.
    pub(super) fn notify_controller(&mut self, heard: Heard) {
        if self.settings.nudges != Nudges::None {
            self.after(self.settings.delays.object_watch, Event::Controller(heard));
        }
    }

    /// Writes the pod's condition as the scheduler does, and sends it to the controller.
    pub(super) fn write_condition(&mut self, id: PodId, by_plugin: bool) {
        if self.settings.nudges != Nudges::None {
            let heard = if by_plugin { Heard::Waits(id) } else { Heard::WaitsNoMore(id) };
            let (Span(first, last), Span(early, late)) =
                (self.settings.delays.condition, self.settings.delays.object_watch);
            self.after(Span(first + early, last + late), Event::Controller(heard));
        }
    }

    pub(super) fn controller_hears(&mut self, heard: Heard) {
        let now = self.now;
        match heard {
            Heard::Object => self.controller.changed(now),
            // Ignore a condition that arrives after the binding: the pod no longer waits.
            Heard::Waits(id) if self.pods[id].object.is_none_or(|seen| seen.bound) => {}
            Heard::Waits(id) => self.controller.waits(id, now),
            Heard::WaitsNoMore(id) => self.controller.waits_no_more(id, now),
            Heard::Nudged => {
                self.controller.writing = false;
                self.controller.nudged(now);
            }
            Heard::Timer(timer) if timer != self.controller.timer => return,
            Heard::Timer(_) => self.controller.wakes = None,
        }
        self.nudge_if_due();
    }

    fn nudge_if_due(&mut self) {
        let Some(due) = self.controller.due().filter(|_| !self.controller.writing) else { return };
        if due <= self.now {
            self.controller.writing = true;
            let [there, back] = self.settings.delays.write;
            let at = self.now + self.dice.within(there);
            self.at(at, Event::Nudge);
            let responded_at = at + self.dice.within(back);
            self.at(responded_at, Event::Controller(Heard::Nudged));
        } else if self.controller.wakes != Some(due) {
            self.controller.timer += 1;
            self.controller.wakes = Some(due);
            let timer = self.controller.timer;
            self.at(due, Event::Controller(Heard::Timer(timer)));
        }
    }

    /// Applies a nudge to an arbitrary object.
    pub(super) fn take_nudge(&mut self) {
        if let Some(object) = self.nodes.iter_mut().find_map(|node| node.object.as_mut()) {
            object.nudges += 1;
            self.figures.nudges += 1;
            self.announce_object();
        }
    }
}
