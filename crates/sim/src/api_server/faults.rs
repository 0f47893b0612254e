//! Faults of an API server, injected on demand.

use std::time::Duration;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A `Status` with this code: 401, 409, 422, 500, 503, 504.
    Status(u16),
    /// A `Status` with a time to retry after.
    RetryAfter {
        /// 429, 503 or 504.
        code: u16,
        /// How long to wait.
        seconds: u32,
    },
    /// 429 in the plain text of API priority and fairness.
    TooManyRequests {
        /// Seconds for the `Retry-After` header.
        retry_after: u32,
    },
    /// The correct response, but delayed.
    Delay(Duration),
    /// No response ever; the connection stays open.
    Hang,
    /// The connection is closed before the request is executed.
    Cut,
    /// The connection is closed after the request is executed: the client cannot know.
    CutAfterwards,
    /// The correct response up to this many bytes; then the connection is closed.
    CutWithin(usize),
    /// The correct response up to this many bytes; then nothing more, and the connection stays open.
    StallWithin(usize),
    /// A successful response with this body.
    Body(Vec<u8>),
}

/// The requests that fail, and how.
#[derive(Clone, Debug)]
pub struct Rule {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`; `None` for any.
    pub verb: Option<&'static str>,
    /// `nodes`, `noderesourcetopologies`; `None` for any, discovery included.
    pub resource: Option<&'static str>,
    /// Number of requests; `None` for all until the faults are cleared.
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

    /// Takes the fault of the first matching rule.
    pub(super) fn take(&mut self, verb: &str, resource: &str) -> Option<Fault> {
        let matches = |rule: &Rule| {
            rule.verb.is_none_or(|wanted| wanted == verb)
                && rule.resource.is_none_or(|wanted| wanted == resource)
        };
        let at = self.0.iter().position(matches)?;
        let rule = &mut self.0[at];
        let fault = rule.fault.clone();
        if let Some(left) = &mut rule.times {
            *left = left.saturating_sub(1);
        }
        self.0.retain(|rule| rule.times != Some(0));
        Some(fault)
    }
}
