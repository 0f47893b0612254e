//! An API server that only reads: what Helm's `lookup` asks, from a list of objects.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use anyhow::Result;
use serde_json::{Value, json};

/// API versions with their kinds that the chart renders or looks up, and whether these have a namespace.
const KINDS: [(&str, &[(&str, bool)]); 9] = [
    (
        "v1",
        &[
            ("Namespace", false),
            ("ConfigMap", true),
            ("ServiceAccount", true),
            ("ResourceQuota", true),
            ("Pod", true),
        ],
    ),
    ("apps/v1", &[("DaemonSet", true), ("Deployment", true)]),
    ("batch/v1", &[("Job", true)]),
    ("coordination.k8s.io/v1", &[("Lease", true)]),
    ("policy/v1", &[("PodDisruptionBudget", true)]),
    (
        "rbac.authorization.k8s.io/v1",
        &[("Role", true), ("RoleBinding", true), ("ClusterRole", false), ("ClusterRoleBinding", false)],
    ),
    (
        "admissionregistration.k8s.io/v1",
        &[("ValidatingAdmissionPolicy", false), ("ValidatingAdmissionPolicyBinding", false)],
    ),
    ("apiextensions.k8s.io/v1", &[("CustomResourceDefinition", false)]),
    ("security.openshift.io/v1", &[("SecurityContextConstraints", false)]),
];

/// A cluster as Helm sees it.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// Its `gitVersion`, such as `v1.37.0+k3s1`.
    pub(crate) version: &'static str,
    /// Whether it has OpenShift's API groups.
    pub(crate) openshift: bool,
    /// Objects by the path of their request.
    pub(crate) objects: Vec<(&'static str, Value)>,
    /// A path whose request is forbidden.
    pub(crate) forbidden: &'static str,
}

impl Cluster {
    /// Returns a cluster of a version, with the Namespace that every cluster has.
    pub(crate) fn new(version: &'static str) -> Self {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}});
        let objects = vec![("/api/v1/namespaces/kube-system", namespace)];
        Self { version, openshift: false, objects, forbidden: "" }
    }

    /// Adds a namespaced object, or replaces the Namespace.
    pub(crate) fn with(mut self, path: &'static str, object: Value) -> Self {
        self.objects.retain(|(other, _)| *other != path);
        self.objects.push((path, object));
        self
    }

    /// Serves it until the process ends, and writes a kubeconfig for it.
    pub(crate) fn serve(self, kubeconfig: &Path) -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let server = format!("http://{}", listener.local_addr()?);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        });
        std::fs::write(kubeconfig, config.to_string())?;
        let cluster = Arc::new(self);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let cluster = Arc::clone(&cluster);
                thread::spawn(move || cluster.answer(stream));
            }
        });
        Ok(())
    }

    /// Answers the requests of one connection.
    fn answer(&self, mut stream: TcpStream) -> Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        while let Some(request) = lines.next().transpose()? {
            while lines.next().transpose()?.is_some_and(|header| !header.is_empty()) {}
            let path = request.split(' ').nth(1).unwrap_or_default();
            let (status, body) = self.get(path.split('?').next().unwrap_or_default());
            let body = body.to_string();
            write!(
                stream,
                "HTTP/1.1 {status} -\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )?;
        }
        Ok(())
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let failure = |code: u16, reason: &str| {
            let message = format!("{path}: {reason}");
            let kind = json!({"apiVersion": "v1", "kind": "Status"});
            let mut status = json!({"status": "Failure", "reason": reason, "message": message, "code": code});
            status
                .as_object_mut()
                .into_iter()
                .for_each(|all| all.extend(kind.as_object().cloned().unwrap_or_default()));
            (code, status)
        };
        if path == self.forbidden {
            return failure(403, "Forbidden");
        }
        let known = self.objects.iter().find(|(at, _)| *at == path).map(|(_, object)| object.clone());
        known.or_else(|| self.about(path)).map_or_else(|| failure(404, "NotFound"), |found| (200, found))
    }

    /// Returns what is served, and the empty list of DaemonSets.
    fn about(&self, path: &str) -> Option<Value> {
        let served: Vec<_> =
            KINDS.into_iter().filter(|(of, _)| self.openshift || !of.contains("openshift")).collect();
        match path {
            "/version" => Some(json!({"major": "1", "minor": "37", "gitVersion": self.version})),
            "/api" => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
            "/apis" => {
                let groups = served.iter().filter(|(of, _)| *of != "v1").map(|(of, _)| {
                    let version = json!({"groupVersion": of, "version": "v1"});
                    json!({"name": of.trim_end_matches("/v1"), "versions": [version], "preferredVersion": version})
                });
                Some(
                    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()}),
                )
            }
            "/apis/apps/v1/daemonsets" => {
                Some(json!({"apiVersion": "apps/v1", "kind": "DaemonSetList", "items": []}))
            }
            _ => {
                let of = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
                let (_, kinds) = served.into_iter().find(|(known, _)| *known == of)?;
                let resources = kinds.iter().map(|(kind, namespaced)| {
                    json!({"name": plural(kind), "kind": kind, "namespaced": namespaced, "verbs": ["get", "list"]})
                });
                let resources: Vec<Value> = resources.collect();
                Some(json!({"kind": "APIResourceList", "groupVersion": of, "resources": resources}))
            }
        }
    }
}

fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => kind,
        None => format!("{kind}s"),
    }
}
