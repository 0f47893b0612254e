//! Paginated lists. All pages of a list are from the same moment, as long as the list is retained.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::status::{self, Failure};

/// Maximum number of retained lists.
const LISTS: usize = 16;

/// The remainders of lists, each with its continue token.
#[derive(Debug, Default)]
pub(super) struct Pages {
    lists: VecDeque<(String, Rest)>,
    /// Number of tokens so far.
    tokens: u64,
}

#[derive(Debug)]
struct Rest {
    objects: Vec<Arc<Value>>,
    version: u64,
}

/// One page.
pub(super) struct Page {
    pub(super) objects: Vec<Arc<Value>>,
    /// The resource version of the whole list.
    pub(super) version: u64,
    /// The continue token of the next page.
    pub(super) next: Option<String>,
    /// Number of remaining objects.
    pub(super) rest: usize,
}

impl Pages {
    /// The first page of a list.
    pub(super) fn first(&mut self, mut objects: Vec<Arc<Value>>, version: u64, limit: usize) -> Page {
        let left = objects.split_off(limit.min(objects.len()));
        let rest = left.len();
        let next = (rest > 0).then(|| self.retain(Rest { objects: left, version }));
        Page { objects, version, next, rest }
    }

    /// The page of a continue token, which can be used more than once.
    pub(super) fn next(&mut self, next: &str, limit: usize) -> Result<Page, Failure> {
        let found = self.lists.iter().find(|(token, _)| token == next);
        let (_, Rest { objects, version }) = found.ok_or_else(status::too_old_to_continue)?;
        Ok(self.first(objects.clone(), *version, limit))
    }

    /// Compacts the history: no list can be continued.
    pub(super) fn compact(&mut self) {
        self.lists.clear();
    }

    fn retain(&mut self, rest: Rest) -> String {
        self.tokens += 1;
        let token = format!("page-{}", self.tokens);
        self.lists.push_back((token.clone(), rest));
        if self.lists.len() > LISTS {
            self.lists.pop_front();
        }
        token
    }
}
