//! What an API server does wrong, on demand.

use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A `Status` with this code: 401, 409, 422, 500, 503, 504.
    Status(u16),
    /// A `Status` that says when to come back.
    RetryAfter {
        /// 429, 503 or 504.
        code: u16,
        /// How long to wait.
        seconds: u32,
    },
    /// 429 in the plain text of priority and fairness.
    TooManyRequests {
        /// Seconds for the header `Retry-After`.
        retry_after: u32,
    },
    /// The true answer, but late.
    Delay(Duration),
    /// No answer ever; the connection stays.
    Hang,
    /// The connection breaks, nothing was done.
    Cut,
    /// The connection breaks after the work was done: the client cannot know.
    CutAfterwards,
    /// The true answer up to so many bytes; then the connection breaks.
    CutWithin(usize),
    /// The true answer up to so many bytes; then nothing more comes, and the connection stays.
    StuckWithin(usize),
    /// Success, with these bytes.
    Says(Vec<u8>),
}

/// Which requests go wrong, and how.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`; `None` for any.
    pub verb: Option<&'static str>,
    /// `nodes`, `noderesourcetopologies`; `None` for any, discovery included.
    pub resource: Option<&'static str>,
    /// How many requests; `None` for all until the faults are cleared.
    pub times: Option<usize>,
    /// What happens to them.
    pub fault: Fault,
}

#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Rule>);

impl Faults {
    pub(super) fn push(&mut self, rule: Rule) {
        self.0.push(rule);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The fault of the first rule that fits.
    pub(super) fn take(&mut self, verb: &str, resource: &str) -> Option<Fault> {
        let fits = |rule: &Rule| {
            rule.verb.is_none_or(|wanted| wanted == verb)
                && rule.resource.is_none_or(|wanted| wanted == resource)
        };
        let at = self.0.iter().position(fits)?;
        let rule = &mut self.0[at];
        let fault = rule.fault.clone();
        if let Some(left) = &mut rule.times {
            *left = left.saturating_sub(1);
        }
        self.0.retain(|rule| rule.times != Some(0));
        Some(fault)
    }
}
