//! What the scheduler, the controller and the kubelet do with claims.

use super::*;

impl Drivers {
    /// Picks an existing claim or allocates a new one, and returns its devices as the List shows them. Returns `None` if
    /// nothing can be allocated.
    pub fn claim(&mut self) -> Option<Vec<ClaimedDevice>> {
        let existing: Vec<String> = self.claims.keys().cloned().collect();
        let name = match self.rng.choice(existing) {
            Some(name) if self.rng.u8(0..3) == 0 => name,
            _ => self.allocate()?,
        };
        let shown = self.claims[&name].results.iter().filter(|given| !self.silent.contains(&given.driver));
        let mut devices: Vec<ClaimedDevice> = shown
            .map(|given| ClaimedDevice {
                claim: name.clone(),
                driver: given.driver.clone(),
                pool: POOL.to_owned(),
                device: given.device.name.clone(),
                // Most drivers do not copy it.
                share: given.share.clone().filter(|_| given.driver.starts_with("gpu")),
            })
            .collect();
        if devices.is_empty() {
            devices.push(ClaimedDevice { claim: name, ..ClaimedDevice::default() });
        }
        Some(devices)
    }

    /// Allocates a claim: only devices of complete pools, and a device in use to nobody else.
    fn allocate(&mut self) -> Option<String> {
        let mut claim = Claim { is_readable: true, ..Claim::default() };
        for number in 0..self.rng.usize(1..4) {
            let pool = &self.pools[self.rng.usize(0..self.pools.len())];
            let (devices, is_complete) = pool.newest();
            let Some(device) = self.rng.choice(devices).filter(|_| is_complete).cloned() else { continue };
            let mut given = Given { driver: pool.driver.clone(), device, ..Given::default() };
            given.is_admin = matches!(given.device.kind, Kind::Other) && self.rng.u8(0..6) == 0;
            // A claim may tolerate a taint.
            let is_allowed = !given.device.is_tainted || self.rng.u8(0..4) == 0;
            if is_allowed && (given.is_admin || self.take(&mut given, &claim)) {
                given.share = given.amount.map(|_| format!("share-{}-{number}", self.claims_made));
                claim.results.push(given);
            }
        }
        if claim.results.is_empty() {
            return None;
        }
        self.claims_made += 1;
        let name = format!("claim-{}", self.claims_made);
        self.claims.insert(name.clone(), claim);
        Some(name)
    }

    /// Returns whether a device can be given to a claim, and sets how much of it.
    fn take(&mut self, given: &mut Given, claim: &Claim) -> bool {
        let all = self.claims.values().chain([claim]).flat_map(|claim| &claim.results);
        let all: Vec<&Given> = all.filter(|of| of.driver == given.driver && !of.is_admin).collect();
        let of_device = || all.iter().filter(|of| of.device.name == given.device.name);
        let Device { kind, capacity, part, .. } = &given.device;
        if let Some((card, amount)) = part {
            let parts = all.iter().filter_map(|of| of.device.part.as_ref()).filter(|(of, _)| of == card);
            return of_device().count() == 0 && parts.map(|(_, of)| of).sum::<u64>() + amount <= WHOLE;
        }
        if *capacity == 0 {
            let is_free = of_device().count() == 0;
            given.cpus = if let Kind::Cpu(cpu) = kind { IdSet::from_iter([*cpu]) } else { IdSet::new() };
            return is_free;
        }
        let amount = match kind {
            Kind::Cpus { .. } => self.rng.u64(1..5),
            _ => (capacity / 8).max(1) * self.rng.u64(1..4),
        };
        let is_free = of_device().filter_map(|of| of.amount).sum::<u64>() + amount <= *capacity;
        // The driver writes one amount of each kind of memory.
        let is_other = |of: &Given| match (&of.device.kind, kind) {
            (Kind::Memory(other, _), Kind::Memory(resource, _)) => other != resource,
            _ => true,
        };
        let can_take = is_free && claim.results.iter().all(is_other);
        if given.is_configured() {
            let taken = all.iter().flat_map(|of| of.cpus.iter()).collect();
            given.cpus = kind.choose(&taken, amount);
        }
        given.amount = Some(amount);
        can_take
    }

    /// Drivers prepare the claims of admitted pods, and unprepare the others.
    pub(super) fn prepare(&mut self, in_use: &BTreeMap<String, ClaimUse>) {
        let is_prepared = |name: &str| in_use.get(name).is_some_and(|of| of.is_prepared);
        for (name, claim) in &mut self.claims {
            claim.is_prepared &= is_prepared(name);
            let chosen = claim.results.iter_mut().filter(|of| of.is_chosen_late() && !is_prepared(name));
            chosen.for_each(|of| of.cpus = IdSet::new());
        }
        for name in self.claims.keys().filter(|name| is_prepared(name)).cloned().collect::<Vec<_>>() {
            let results = self.claims.values().flat_map(|claim| &claim.results);
            let mut taken: IdSet = results.flat_map(|of| of.cpus.iter()).collect();
            let Some(claim) = self.claims.get_mut(&name).filter(|claim| !claim.is_prepared) else { continue };
            claim.is_prepared = true;
            for of in claim.results.iter_mut().filter(|of| of.is_chosen_late()) {
                of.cpus = of.device.kind.choose(&taken, of.amount.unwrap_or_default());
                taken.union_with(&of.cpus);
            }
        }
    }

    /// The API server no longer returns a claim, or does so again.
    pub fn hide_claim(&mut self) -> String {
        let Some((name, claim)) = self.rng.choice(self.claims.iter_mut()) else {
            return "nothing".to_owned();
        };
        claim.is_readable = !claim.is_readable;
        format!("{name} can be read: {}", claim.is_readable)
    }

    /// The controller deallocates one of the claims that no pod names.
    pub fn deallocate(&mut self, in_use: &BTreeMap<String, ClaimUse>) -> String {
        let unused = self.claims.keys().filter(|name| !in_use.contains_key(*name)).cloned();
        let Some(name) = self.rng.choice(unused.collect::<Vec<_>>()) else { return "nothing".to_owned() };
        self.claims.remove(&name);
        format!("{name} is deallocated")
    }
}

impl Given {
    /// Whether the claim itself tells which CPUs it has.
    pub(super) fn is_configured(&self) -> bool {
        let of_machine = matches!(self.device.kind, Kind::Cpus { socket: None, .. });
        of_machine && self.device.publishes == Publishes::Nothing
    }

    fn is_chosen_late(&self) -> bool {
        matches!(self.device.kind, Kind::Cpus { .. }) && !self.is_configured()
    }
}

impl Kind {
    fn choose(&self, taken: &IdSet, count: u64) -> IdSet {
        let Self::Cpus { from, .. } = self else { return IdSet::new() };
        from.difference(taken).iter().take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
    }
}
