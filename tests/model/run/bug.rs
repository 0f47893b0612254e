//! Deliberate bugs of the agent.

/// A deliberate bug, to verify that the model detects it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Bug {
    #[default]
    None,
    /// The fingerprint is never withheld.
    NeverWithholds,
    /// While the fingerprint is withheld, it can match: it is that of the set with the pods that are
    /// waited for.
    WithholdsByPossibleSet,
    /// The set comes from the latest events, but the zones from the last slow poll.
    StaleZones,
}

impl Bug {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::NeverWithholds => "never withheld",
            Self::WithholdsByPossibleSet => "withheld by a set of pods that may occur",
            Self::StaleZones => "never withheld, zones of the last poll",
        }
    }
}
