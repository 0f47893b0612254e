//! The scheduler: its informers, its cycles and the plugin's ticks.

use super::*;

/// Additional duration of a cycle per node.
const PER_NODE: Time = 40;

impl Simulation {
    pub(super) fn scheduler_receives(&mut self, id: PodId, state: Option<PodState>) {
        if self.settings.informer == Informer::Shared {
            self.plugin_receives(id, state);
        }
        let node = self.node_of(id);
        match state.filter(|state| !state.phase.is_terminal()) {
            Some(state) if state.bound => {
                if !self.nodes[node].on_node.contains(&id) {
                    self.nodes[node].on_node.push(id);
                }
            }
            Some(_) => {
                let is_new = !self.queue.pods().any(|queued| queued == id);
                if is_new && self.pods[id].reserved.is_none() && self.pods[id].own_scheduler {
                    self.queue.add(id, self.now);
                }
            }
            None => {
                let was_on_node = self.nodes[node].on_node.contains(&id);
                self.nodes[node].on_node.retain(|other| *other != id);
                self.queue.remove(id);
                if was_on_node {
                    self.queue.handle(QueueEvent::PodDeleted, self.now);
                }
            }
        }
        self.schedule();
    }

    pub(super) fn plugin_receives(&mut self, id: PodId, state: Option<PodState>) {
        if let Some(node) = self.pods[id].node {
            self.nodes[node].plugin.handle_pod(id, &self.pods[id], state);
            self.record_agreement(node);
        }
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
        self.measurements.cycles += 1;
        if self.reads_directly() {
            let reads = self.nodes.len() as u32;
            let wait = self.wait_for_client(reads);
            let at = self.now + wait + self.rng.within(self.settings.delays.read);
            self.at(at, Event::CycleReads(id));
        } else {
            self.choose_node(id);
        }
    }

    /// Returns true if the plugin reads the objects for every pod.
    fn reads_directly(&self) -> bool {
        self.settings.plugin && self.settings.cache != Cache::OverReserve
    }

    /// How long the plugin's client waits until it may send this many requests.
    fn wait_for_client(&mut self, requests: u32) -> Time {
        self.measurements.reads += u64::from(requests);
        let Some((rate, burst)) = self.settings.client else { return 0 };
        let (tokens, since) = self.tokens;
        let earned = (self.now - since) * u64::from(rate);
        let tokens = (tokens + earned).min(u64::from(burst) * S);
        let wanted = u64::from(requests) * S;
        let wait = wanted.saturating_sub(tokens).div_ceil(u64::from(rate));
        self.tokens = (tokens + wait * u64::from(rate) - wanted, self.now + wait);
        wait
    }

    /// Chooses the node with the best score among those that the pod fits.
    pub(super) fn choose_node(&mut self, id: PodId) {
        let (mut by_plugin, mut fit) = (false, 0);
        let mut best: Option<((u32, u64), NodeId)> = None;
        for node in 0..self.nodes.len() {
            let Some(score) = self.score(id, node, &mut by_plugin) else { continue };
            fit += 1;
            // Break ties at random.
            let score = (score, self.rng.seed());
            if best.is_none_or(|(before, _)| before < score) {
                best = Some((score, node));
            }
        }
        let result = match best {
            Some((_, node)) => {
                self.note_unknown(id, node);
                CycleResult::Node(node)
            }
            None => CycleResult::None { by_plugin },
        };
        // A single fitting node is not scored.
        let scored = if fit > 1 && self.reads_directly() { fit } else { 0 };
        let Span(first, last) = self.settings.delays.cycle;
        let longer = self.nodes.len() as Time * PER_NODE + self.wait_for_client(scored);
        self.after(Span(first + longer, last + longer), Event::CycleEnds { pod: id, result });
    }

    /// The node's score for the pod; `None` if the pod does not fit.
    fn score(&mut self, id: PodId, node: NodeId, by_plugin: &mut bool) -> Option<u32> {
        let request = self.pods[id].request;
        let total = self.settings.zones.iter().sum::<u32>() * 1000;
        let state = &mut self.nodes[node];
        let used: u32 = state.on_node.iter().map(|pod| self.pods[*pod].request.milli).sum();
        if used + request.milli > total {
            return None;
        }
        let least_allocated = (total - used - request.milli) * 100 / total;
        if !self.settings.plugin {
            return Some(least_allocated);
        }
        if state.plugin.filter(request, &self.pods, state.object.as_ref()) != Filter::Pass {
            *by_plugin = true;
            return None;
        }
        Some(least_allocated + state.plugin.score(request, &self.pods, state.object.as_ref()))
    }

    /// Records which pods of the node the plugin did not know when it let this one pass.
    fn note_unknown(&mut self, id: PodId, node: NodeId) {
        let unknown = self.unknown_to_plugin(node);
        if self.reads_directly() {
            unknown.iter().for_each(|unknown| self.forget(*unknown, self.now));
        }
        self.pods[id].unknown_pods = unknown.into_iter().map(|pod| (pod, self.pods[pod].forgotten)).collect();
        self.pods[id].passed = Some(self.now);
    }

    /// Placed pods with exclusive CPUs that are neither accounted for in the plugin's object nor assumed by
    /// it.
    pub(super) fn unknown_to_plugin(&self, node: NodeId) -> Vec<PodId> {
        let mut unknown = self.absent_from_plugin(node);
        unknown.retain(|id| self.takes_cpus(node, *id));
        unknown
    }

    /// Like [`Simulation::unknown_to_plugin`], including deleted pods without CPUs: the kubelet may still
    /// admit a pod whose deletion it has not received yet.
    fn absent_from_plugin(&self, node: NodeId) -> Vec<PodId> {
        let state = &self.nodes[node];
        let direct = self.settings.cache != Cache::OverReserve;
        let object = if direct { state.object.as_ref() } else { state.plugin.cached.as_ref() };
        let accounts = object.map_or(&[][..], |object| &object.accounts);
        let absent = |id: &&PodId| {
            self.pods[**id].request.exclusive() > 0
                && !state.plugin.assumed.contains(id)
                && accounts.binary_search(id).is_err()
        };
        state.placed.iter().filter(absent).copied().collect()
    }

    /// Returns true if the pod has CPUs or is expected to be allocated some.
    fn takes_cpus(&self, node: NodeId, id: PodId) -> bool {
        let pod = &self.pods[id];
        // A pod deleted before its admission is rarely allocated CPUs, and a pod deleted by force
        // loses them before the kubelet receives the next pod.
        let will_have_cpus = pod.object.is_some_and(|state| !state.deleted) || pod.kind == Kind::Static;
        let has_cpus = self.nodes[node].kubelet.pods.get(&id).is_some_and(|entry| entry.cpus != 0);
        will_have_cpus || has_cpus && pod.object.is_some()
    }

    /// Records that the plugin no longer knows the pod, since it read the object at `read`.
    fn forget(&mut self, id: PodId, read: Time) {
        let grace = self.settings.grace;
        let pod = &mut self.pods[id];
        let is_reading = pod.node.is_some_and(|node| read < self.nodes[node].reading_until);
        let unavoidable = is_reading || pod.received_at.is_none_or(|received| read <= received + grace);
        let unbound = pod.bound.is_none_or(|bound| read <= bound);
        pod.forgotten = Some(Forgotten { unavoidable, unbound });
        let counts = pod.node.is_some_and(|node| self.takes_cpus(node, id));
        self.measurements.forgotten += u64::from(counts);
        self.measurements.forgotten_avoidably += u64::from(counts && !unavoidable);
    }

    pub(super) fn end_cycle(&mut self, id: PodId, result: CycleResult) {
        self.scheduling = false;
        match result {
            _ if self.pods[id].object.is_none() => self.queue.dropped(),
            CycleResult::None { by_plugin } => {
                self.queue.rejected(by_plugin, self.now);
                self.write_condition(id, by_plugin);
            }
            CycleResult::Node(node) => self.reserve(id, node),
        }
        self.schedule();
    }

    fn reserve(&mut self, id: PodId, node: NodeId) {
        self.queue.placed();
        self.pods[id].node = Some(node);
        self.pods[id].reserved = Some(self.now);
        let state = &mut self.nodes[node];
        state.plugin.reserve(id, &self.pods);
        state.on_node.push(id);
        state.placed.insert(id);
        if state.object.as_ref().is_some_and(|object| object.withheld) {
            self.pods[id].accounted_at = Some(self.now);
            self.measurements.windows.push(0);
        }
        let late = if self.pods[id].binds_late { self.settings.delays.late_bind } else { Span(0, 0) };
        let at = self.now + self.rng.within(late) + self.rng.within(self.settings.delays.bind[0]);
        self.at(at, Event::Bind(id));
    }

    pub(super) fn bind(&mut self, id: PodId) {
        if self.pods[id].object.is_none() {
            // The pod was deleted meanwhile.
            let state = &mut self.nodes[self.pods[id].node.unwrap_or_default()];
            state.plugin.unreserve(id);
            state.on_node.retain(|other| *other != id);
            state.placed.remove(&id);
            self.queue.handle(QueueEvent::PodDeleted, self.now);
            self.schedule();
            return;
        }
        self.pods[id].bound = Some(self.now);
        self.change(id, |state| state.bound = true);
        self.notify_controller(ControllerInput::NotPending(id));
        self.after(self.settings.delays.bind[1], Event::PostBind(id));
    }

    pub(super) fn tick(&mut self) {
        let is_dirty = |node: &NodeId| self.settings.plugin && self.nodes[*node].plugin.is_dirty();
        let dirty: Vec<NodeId> = (0..self.nodes.len()).filter(is_dirty).collect();
        if dirty.is_empty() {
            self.at(self.now + self.settings.resync, Event::Tick);
            return;
        }
        self.measurements.dirty_ticks += 1;
        let expected = |node: NodeId| (node, self.nodes[node].plugin.expected(&self.pods));
        self.tick_state.dirty = dirty.into_iter().map(expected).collect();
        self.after(self.settings.delays.read, Event::TickRead);
    }

    /// Reads the nodes one after another.
    pub(super) fn tick_read(&mut self) {
        let Some((node, expected)) = self.tick_state.dirty.pop_front() else { return };
        self.measurements.reads += 1;
        let state = &self.nodes[node];
        let object = state.object.clone().filter(|object| state.plugin.accepts(expected, object));
        self.tick_state.accepted.extend(object.map(|object| (node, object, self.now)));
        if self.tick_state.dirty.is_empty() {
            self.after(self.settings.delays.flush, Event::TickFlush);
        } else {
            self.after(self.settings.delays.read, Event::TickRead);
        }
    }

    /// Flushes all nodes whose object was accepted, together.
    pub(super) fn tick_flush(&mut self) {
        self.at(self.now + self.settings.resync, Event::Tick);
        let accepted = std::mem::take(&mut self.tick_state.accepted);
        if self.settings.oracle && !accepted.is_empty() {
            self.at(self.now + MS, Event::ObjectChanged);
        }
        for (node, object, read) in accepted {
            let before = self.absent_from_plugin(node);
            self.nodes[node].plugin.flush(object);
            for id in self.absent_from_plugin(node) {
                if !before.contains(&id) {
                    self.forget(id, read);
                }
            }
        }
    }
}
