//! Partially decoded objects, and the conversion of kube's watch events.

use kube::runtime::watcher;

use crate::watch_event::WatchEvent;

/// Implements [`kube::Resource`] for a partial type with a `metadata` field, as the resource of the whole
/// type.
macro_rules! reads_as {
    ($slim:ty, $whole:ty) => {
        impl kube::Resource for $slim {
            type DynamicType = ();
            type Scope = <$whole as kube::Resource>::Scope;

            fn kind(of: &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::kind(of)
            }

            fn group(of: &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::group(of)
            }

            fn version(of: &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::version(of)
            }

            fn plural(of: &()) -> std::borrow::Cow<'_, str> {
                <$whole as kube::Resource>::plural(of)
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
pub(super) use reads_as;

impl<T> From<watcher::Event<T>> for WatchEvent<T> {
    fn from(event: watcher::Event<T>) -> Self {
        match event {
            watcher::Event::Init => Self::Listing,
            watcher::Event::InitApply(object) => Self::Listed(object),
            watcher::Event::InitDone => Self::Complete,
            watcher::Event::Apply(object) => Self::Is(object),
            watcher::Event::Delete(object) => Self::Gone(object),
        }
    }
}
