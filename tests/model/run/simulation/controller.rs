//! The cluster's controller: its inputs and its nudges.

use super::*;

impl Simulation {
    /// Sends the controller an event of the API server, with the latency of a watch.
    pub(super) fn notify_controller(&mut self, input: ControllerInput) {
        if self.settings.nudges != Nudges::None {
            self.after(self.settings.delays.object_watch, Event::Controller(input));
        }
    }

    /// Writes the pod's condition as the scheduler does, and sends it to the controller.
    pub(super) fn write_condition(&mut self, id: PodId, by_plugin: bool) {
        if self.settings.nudges != Nudges::None {
            let input = match by_plugin {
                true => ControllerInput::Pending(id),
                false => ControllerInput::NotPending(id),
            };
            let (Span(first, last), Span(early, late)) =
                (self.settings.delays.condition, self.settings.delays.object_watch);
            self.after(Span(first + early, last + late), Event::Controller(input));
        }
    }

    pub(super) fn controller_receives(&mut self, input: ControllerInput) {
        let now = self.now;
        match input {
            ControllerInput::ObjectChanged => self.controller.object_changed(now),
            // Ignore a condition that arrives after the binding.
            ControllerInput::Pending(id) if self.pods[id].object.is_none_or(|state| state.bound) => {}
            ControllerInput::Pending(id) => self.controller.add_pending(id, now),
            ControllerInput::NotPending(id) => self.controller.remove_pending(id, now),
            ControllerInput::Nudged => {
                self.controller.writing = false;
                self.controller.nudged(now);
            }
            ControllerInput::Timer(timer) if timer != self.controller.timer => return,
            ControllerInput::Timer(_) => self.controller.wakes = None,
        }
        self.nudge_if_due();
    }

    fn nudge_if_due(&mut self) {
        let Some(due) = self.controller.due().filter(|_| !self.controller.writing) else { return };
        if due <= self.now {
            self.controller.writing = true;
            let [to_server, back] = self.settings.delays.write;
            let at = self.now + self.rng.within(to_server);
            self.at(at, Event::Nudge);
            let responded_at = at + self.rng.within(back);
            self.at(responded_at, Event::Controller(ControllerInput::Nudged));
        } else if self.controller.wakes != Some(due) {
            self.controller.timer += 1;
            self.controller.wakes = Some(due);
            let timer = self.controller.timer;
            self.at(due, Event::Controller(ControllerInput::Timer(timer)));
        }
    }

    /// Applies a nudge to an arbitrary object.
    pub(super) fn apply_nudge(&mut self) {
        if let Some(object) = self.nodes.iter_mut().find_map(|node| node.object.as_mut()) {
            object.nudges += 1;
            self.measurements.nudges += 1;
            self.notify_object_watchers();
        }
    }
}
