//! Lists that are read page by page: each is the list of one moment, for as long as that is remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;

use super::status::{self, Failure};

/// So many lists are remembered.
const LISTS: usize = 16;

/// What is left of lists, each with what it continues by.
#[derive(Debug, Default)]
pub(super) struct Pages {
    lists: VecDeque<(String, Rest)>,
    begun: u64,
}

#[derive(Debug)]
struct Rest {
    objects: Vec<Arc<Value>>,
    version: u64,
}

/// One page.
pub(super) struct Page {
    pub(super) objects: Vec<Arc<Value>>,
    /// That of the whole list.
    pub(super) version: u64,
    /// What the next one is asked for by.
    pub(super) next: Option<String>,
    /// How many objects are left.
    pub(super) rest: usize,
}

impl Pages {
    /// The first page of a list.
    pub(super) fn first(&mut self, mut objects: Vec<Arc<Value>>, version: u64, limit: usize) -> Page {
        let left = objects.split_off(limit.min(objects.len()));
        let rest = left.len();
        let next = (rest > 0).then(|| self.remember(Rest { objects: left, version }));
        Page { objects, version, next, rest }
    }

    /// The page that is asked for by `next`, which may be asked for more than once.
    pub(super) fn next(&mut self, next: &str, limit: usize) -> Result<Page, Failure> {
        let found = self.lists.iter().find(|(name, _)| name == next);
        let (_, Rest { objects, version }) = found.ok_or_else(status::too_old_to_continue)?;
        Ok(self.first(objects.clone(), *version, limit))
    }

    /// Compacts the history: no list can go on.
    pub(super) fn forget(&mut self) {
        self.lists.clear();
    }

    fn remember(&mut self, rest: Rest) -> String {
        self.begun += 1;
        let name = format!("page-{}", self.begun);
        self.lists.push_back((name.clone(), rest));
        if self.lists.len() > LISTS {
            self.lists.pop_front();
        }
        name
    }
}
