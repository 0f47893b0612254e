//! Annotations in a format that an entry of `mappings` describes: JSON with a path to the devices, or ids
//! separated by commas. An entry has one resource; an annotation with several is read once for each entry.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::MAX_IDS;
use super::config::AnnotationMapping;
use super::pod_reader::{PodReader, RequestedDevice, Share};

type MappedDevice<'a> = (Box<str>, Option<Cow<'a, str>>);

pub(super) fn read(reader: &mut PodReader<'_>, mapping: &AnnotationMapping, text: &str) {
    let Some(path) = &mapping.path else {
        let ids = text.split(',').map(str::trim).filter(|id| !id.is_empty()).take(MAX_IDS + 1);
        let devices = ids.filter_map(|id| Some((reader.checked_id(id)?, None))).collect();
        return allocate(reader, mapping, devices);
    };
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(error) => {
            return reader.errors.add_malformed(&mapping.annotation, &format!("it is not JSON ({error})"));
        }
    };
    let (mut devices, mut left) = (Vec::new(), MAX_IDS + 1);
    path.select(&value, &mut |device, key| {
        devices.extend(read_device(reader, mapping, device, key));
        left -= 1;
        left > 0
    });
    allocate(reader, mapping, devices);
}

/// Reads a device that the path selected. `key` is what the path's first wildcard matched.
fn read_device<'a>(
    reader: &mut PodReader<'_>,
    mapping: &AnnotationMapping,
    device: &'a Value,
    key: Option<&'a str>,
) -> Option<MappedDevice<'a>> {
    let id = mapping.id.as_ref().map_or(Some(device), |path| path.first(device)).and_then(as_text);
    let container = mapping.container.as_ref().map(|path| match path.is_wildcard() {
        true => key.map(Cow::Borrowed),
        false => path.first(device).and_then(as_text),
    });
    let (Some(id), None | Some(Some(_))) = (id, &container) else {
        let reason = "an id or a container is missing, or neither a string nor a number";
        reader.errors.add_malformed(&mapping.annotation, reason);
        return None;
    };
    Some((reader.checked_id(&id)?, container.flatten()))
}

fn as_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        _ => None,
    }
}

fn allocate(reader: &mut PodReader<'_>, mapping: &AnnotationMapping, devices: Vec<MappedDevice<'_>>) {
    let resource: Arc<str> = mapping.resource.as_str().into();
    let mut unnamed = Vec::new();
    let mut counts: BTreeMap<Cow<'_, str>, usize> = BTreeMap::new();
    let mut distinct = BTreeSet::new();
    for (id, container) in devices.into_iter().filter(|device| distinct.insert(device.clone())) {
        let nodes = reader.node.numa_nodes(&id, None);
        let device = RequestedDevice { ids: vec![(id, nodes)], share: Share::Whole };
        match container {
            None => unnamed.push(device),
            Some(name) => {
                let before = counts.entry(name.clone()).or_default();
                reader.allocate_to(&name, &resource, device, *before);
                *before += 1;
            }
        }
    }
    reader.allocate(None, &resource, unnamed);
}
