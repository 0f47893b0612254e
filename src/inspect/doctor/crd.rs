//! The CRD of the objects.

use super::facts::Facts;
use crate::cluster::{CRD_NAME, CrdDetails};
use crate::inspect::{Check, Finding, Mend, Severity};
use crate::nrt::Version;

const APPLY: &str = "numacast crd | kubectl apply --server-side --force-conflicts --filename -";

pub(super) static CRD_MISSING: Check = Check {
    name: "CrdMissing",
    severity: Severity::Error,
    looks_for: "the CRD is not installed",
    why: "Agents cannot publish anything.",
};
pub(super) static CRD_NOT_ESTABLISHED: Check = Check {
    name: "CrdNotEstablished",
    severity: Severity::Error,
    looks_for: "the API server does not accept the CRD",
    why: "Agents cannot publish anything.",
};
pub(super) static CRD_VERSION_NOT_SERVED: Check = Check {
    name: "CrdVersionNotServed",
    severity: Severity::Error,
    looks_for: "v1alpha2 is not served",
    why: "Agents cannot publish policies, fingerprint and placement, and schedulers that read v1alpha2 see no object.",
};
pub(super) static CRD_SCHEMA_OLD: Check = Check {
    name: "CrdSchemaOld",
    severity: Severity::Error,
    looks_for: "the schema of v1alpha2 lacks fields",
    why: "The API server drops these fields without an error.",
};
pub(super) static CRD_STORAGE_VERSION: Check = Check {
    name: "CrdStorageVersion",
    severity: Severity::Error,
    looks_for: "objects are stored in another version than v1alpha2",
    why: "The API server drops the attributes, so schedulers know no policies.",
};
pub(super) static CRD_STORED_VERSIONS: Check = Check {
    name: "CrdStoredVersions",
    severity: Severity::Warning,
    looks_for: "objects may still be stored in an earlier version",
    why: "A later CRD without that version cannot be installed.",
};

pub(super) const CHECKS: &[&Check] = &[
    &CRD_MISSING,
    &CRD_NOT_ESTABLISHED,
    &CRD_VERSION_NOT_SERVED,
    &CRD_SCHEMA_OLD,
    &CRD_STORAGE_VERSION,
    &CRD_STORED_VERSIONS,
];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let finding = |check: &'static Check, what: String, command: &str| {
        check.finding(format!("CustomResourceDefinition {CRD_NAME}"), what, Mend::Run(command.to_owned()))
    };
    let crd = match &facts.crd {
        None => return Vec::new(),
        Some(None) => return vec![finding(&CRD_MISSING, "there is no such CRD".to_owned(), APPLY)],
        Some(Some(crd)) => crd,
    };
    let mut found = Vec::new();
    if let Some(message) = not_established(crd) {
        found.push(finding(&CRD_NOT_ESTABLISHED, message, APPLY));
    }
    let current = Version::V1alpha2.name();
    let version = crd.spec.versions.iter().find(|version| version.name == current);
    match version.filter(|version| version.served) {
        None => found.push(finding(&CRD_VERSION_NOT_SERVED, format!("it does not serve {current}"), APPLY)),
        Some(version) => {
            let properties = &version.schema["openAPIV3Schema"]["properties"];
            let lacks = |field: &&str| !properties.is_null() && properties.get(*field).is_none();
            let missing: Vec<&str> = ["attributes", "zones"].into_iter().filter(lacks).collect();
            if !missing.is_empty() {
                let what = format!("the schema of {current} has no {}", missing.join(" and no "));
                found.push(finding(&CRD_SCHEMA_OLD, what, APPLY));
            }
        }
    }
    let storage =
        crd.spec.versions.iter().find(|version| version.storage).map(|version| version.name.as_str());
    match storage {
        Some(storage) if storage == current => found.extend(earlier(crd).map(|versions| {
            let what = format!("objects may be stored in {versions}");
            finding(&CRD_STORED_VERSIONS, what, &migration(current))
        })),
        storage => {
            let what = format!("objects are stored in {}", storage.unwrap_or("no version"));
            found.push(finding(&CRD_STORAGE_VERSION, what, APPLY));
        }
    }
    found
}

/// Returns the message of the condition that is not met.
fn not_established(crd: &CrdDetails) -> Option<String> {
    let not_met = |kind: &str| {
        let condition = crd.status.conditions.iter().find(|condition| condition.r#type == kind)?;
        (condition.status != "True").then(|| format!("it is not {kind}: {}", condition.message))
    };
    ["NamesAccepted", "Established"].into_iter().find_map(not_met)
}

/// Returns the versions other than the current one in which objects may be stored.
fn earlier(crd: &CrdDetails) -> Option<String> {
    let versions = crd.status.stored_versions.iter().filter(|version| *version != Version::V1alpha2.name());
    let versions: Vec<&str> = versions.map(String::as_str).collect();
    (!versions.is_empty()).then(|| versions.join(", "))
}

/// Returns the command that writes every object once more, in the current version.
fn migration(current: &str) -> String {
    format!(
        "kubectl get noderesourcetopologies --output json | kubectl replace --filename - && kubectl patch \
         customresourcedefinition {CRD_NAME} --subresource status --type merge --patch \
         '{{\"status\":{{\"storedVersions\":[\"{current}\"]}}}}'"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_crd_that_is_not_established_is_reported() {
        let found = |status: &str| {
            let versions = json!([{"name": "v1alpha2", "served": true, "storage": true}]);
            let conditions = json!([{"type": "NamesAccepted", "status": "True"},
                                    {"type": "Established", "status": status, "message": "names conflict"}]);
            let crd = json!({"spec": {"versions": versions}, "status": {"conditions": conditions}});
            let facts = Facts { crd: Some(Some(serde_json::from_value(crd).unwrap())), ..Facts::default() };
            check(&facts).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        assert_eq!(found("True"), [""; 0]);
        assert_eq!(found("False"), ["it is not Established: names conflict"]);
    }
}
