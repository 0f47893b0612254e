//! The kubelet's command line: the paths of its files, and the flags that override them. It is in `/proc` if
//! the kubelet is a process of its own; k3s runs it inside another process.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::read_text;

/// Flags that set a key of the configuration, as in the kubelet's options.go.
const TEXT_FLAGS: [(&str, &str); 5] = [
    ("cpu-manager-policy", "cpuManagerPolicy"),
    ("memory-manager-policy", "memoryManagerPolicy"),
    ("topology-manager-policy", "topologyManagerPolicy"),
    ("topology-manager-scope", "topologyManagerScope"),
    ("reserved-cpus", "reservedSystemCPUs"),
];
/// Flags that set a map, in pairs like `cpu=1,memory=1Gi`. The first occurrence replaces the file's map.
const MAP_FLAGS: [(&str, &str); 5] = [
    ("cpu-manager-policy-options", "cpuManagerPolicyOptions"),
    ("topology-manager-policy-options", "topologyManagerPolicyOptions"),
    ("kube-reserved", "kubeReserved"),
    ("system-reserved", "systemReserved"),
    ("eviction-hard", "evictionHard"),
];

/// The parts of a kubelet's command line that numacast needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandLine {
    /// `--config`
    pub(super) config: Option<String>,
    /// `--config-dir`
    pub(super) config_dir: Option<String>,
    /// `--root-dir`
    pub(super) root_dir: Option<String>,
    /// `--hostname-override`, as the kubelet uses it; `None` if it is empty.
    hostname: Option<String>,
    /// Keys set by flags. Each replaces the key of the files entirely.
    pub(super) keys: Map<String, Value>,
}

impl CommandLine {
    /// Finds the command line of the kubelet of `node` among the processes in `proc`. Kubelets whose
    /// `--hostname-override` is another node are ignored. Of several others, it is the only one whose
    /// `--hostname-override` is this node.
    pub(super) fn find(proc: &Path, node: &str) -> Option<Self> {
        let processes = std::fs::read_dir(proc).ok()?.flatten();
        let pids =
            processes.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
        let lines = pids.filter_map(|entry| read_text(&entry.path().join("cmdline")).ok());
        let mut found: Vec<Self> = lines.filter_map(|line| Self::parse(&line)).collect();
        found.retain(|line| line.hostname.as_ref().is_none_or(|name| name == node));
        if found.len() > 1 {
            found.retain(|line| line.hostname.is_some());
        }
        found.pop().filter(|_| found.is_empty())
    }

    /// Parses a process's `cmdline`; `None` if it is not a kubelet.
    fn parse(cmdline: &str) -> Option<Self> {
        let mut words = cmdline.trim_end_matches('\0').split('\0');
        let mut name = words.next()?.rsplit('/').next();
        if name == Some("hyperkube") {
            name = words.next();
        }
        (name == Some("kubelet")).then(|| Self::parse_flags(words))
    }

    fn parse_flags<'a>(mut words: impl Iterator<Item = &'a str>) -> Self {
        let mut line = Self::default();
        while let Some(word) = words.next().filter(|word| *word != "--") {
            let Some(flag) = word.strip_prefix("--") else { continue };
            let (name, value) =
                flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
            let name = name.replace('_', "-");
            if Self::is_known(&name)
                && let Some(value) = value.or_else(|| words.next())
            {
                line.set(&name, value);
            }
        }
        line
    }

    /// Returns true for the flags that are read. All of them take a value, which may be a separate argument.
    fn is_known(name: &str) -> bool {
        let others = ["config", "config-dir", "root-dir", "hostname-override", "reserved-memory"];
        others.contains(&name) || TEXT_FLAGS.iter().chain(&MAP_FLAGS).any(|(flag, _)| *flag == name)
    }

    fn set(&mut self, name: &str, value: &str) {
        let text = || Some(value.to_owned());
        match name {
            "config" => self.config = text(),
            "config-dir" => self.config_dir = text(),
            "root-dir" => self.root_dir = text(),
            // As in `GetHostname` of `k8s.io/component-helpers/node/util`.
            "hostname-override" => {
                self.hostname = Some(value.trim().to_lowercase()).filter(|name| !name.is_empty());
            }
            "reserved-memory" => self.add_reserved_memory(value),
            _ => {}
        }
        if let Some((_, key)) = TEXT_FLAGS.iter().find(|(flag, _)| *flag == name) {
            self.keys.insert((*key).to_owned(), value.into());
        }
        if let Some((_, key)) = MAP_FLAGS.iter().find(|(flag, _)| *flag == name) {
            let map = self.keys.entry(*key).or_insert_with(|| json!({}));
            pairs(value).for_each(|(name, value)| map[name] = value.into());
        }
    }

    /// Parses `0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=1Gi`
    fn add_reserved_memory(&mut self, text: &str) {
        let nodes = text.split(';').filter_map(|entry| {
            let (node, limits) = entry.split_once(':')?;
            let limits: Map<String, Value> =
                pairs(limits).map(|(name, value)| (name.to_owned(), value.into())).collect();
            Some(json!({ "numaNode": node.trim().parse::<u64>().ok()?, "limits": limits }))
        });
        let list = self.keys.entry("reservedMemory").or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.extend(nodes);
        }
    }
}

/// Splits `a=1,b=2`; thresholds are `a<1`. A kubelet does not start with an invalid pair, so a running one has none.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split(',')
        .filter_map(|pair| pair.split_once(['=', '<']))
        .map(|(name, value)| (name.trim(), value.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Option<CommandLine> {
        CommandLine::parse(&(words.replace(' ', "\0") + "\0"))
    }

    #[test]
    fn flags_are_parsed_in_every_spelling_and_others_are_ignored() {
        let line = parse(
            "/usr/bin/kubelet -v=2 --config /etc/kubelet.yaml --fail-swap-on --new-in-1.50 x --config-dir=/etc/conf.d \
             --cpu_manager_policy static --memory-manager-policy=Static --topology-manager-policy=restricted \
             --topology-manager-policy=single-numa-node --topology-manager-scope=pod --reserved-cpus=0,8 \
             --topology-manager-policy-options=max-allowable-numa-nodes=16 --kube-reserved=cpu=500m,memory=1Gi \
             --kube-reserved cpu=1 --eviction-hard memory.available<200Mi,nodefs.available<5% \
             --reserved-memory 0:memory=1Gi,hugepages-2Mi=4Mi;1:memory=2Gi \
             --reserved-memory=2:memory=1Gi --root-dir=/data -- --cpu-manager-policy=none",
        )
        .unwrap();
        assert_eq!(line.config.as_deref(), Some("/etc/kubelet.yaml"));
        assert_eq!(line.config_dir.as_deref(), Some("/etc/conf.d"));
        assert_eq!(line.root_dir.as_deref(), Some("/data"));
        assert_eq!(
            Value::Object(line.keys),
            json!({
                "cpuManagerPolicy": "static",
                "memoryManagerPolicy": "Static",
                "topologyManagerPolicy": "single-numa-node",
                "topologyManagerScope": "pod",
                "topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "16"},
                "reservedSystemCPUs": "0,8",
                "kubeReserved": {"cpu": "1", "memory": "1Gi"},
                "evictionHard": {"memory.available": "200Mi", "nodefs.available": "5%"},
                "reservedMemory": [
                    {"numaNode": 0, "limits": {"memory": "1Gi", "hugepages-2Mi": "4Mi"}},
                    {"numaNode": 1, "limits": {"memory": "2Gi"}},
                    {"numaNode": 2, "limits": {"memory": "1Gi"}},
                ],
            })
        );
    }

    #[test]
    fn only_a_kubelet_is_found() {
        assert!(parse("kubelet").is_some());
        assert!(
            parse("/hyperkube kubelet --config=/x").is_some_and(|line| line.config.as_deref() == Some("/x"))
        );
        for other in ["", "/usr/bin/kubectl kubelet", "/hyperkube apiserver", "vim kubelet", "k3s server"] {
            assert_eq!(parse(other), None, "{other}");
        }
        assert_eq!(parse("kubelet --config"), Some(CommandLine::default()), "a flag without its value");
    }

    #[test]
    fn of_several_kubelets_the_one_with_the_nodes_name_is_found() {
        let proc = tempfile::tempdir().unwrap();
        let run = |pid: &str, words: &str| {
            std::fs::create_dir_all(proc.path().join(pid)).unwrap();
            std::fs::write(proc.path().join(pid).join("cmdline"), words.replace(' ', "\0")).unwrap();
        };
        let found = || CommandLine::find(proc.path(), "worker").and_then(|line| line.config);
        run("self", "kubelet --config=/never");
        run("1", "/sbin/init");
        std::fs::create_dir(proc.path().join("2")).unwrap();
        assert_eq!(found(), None);
        run("30", "kubelet --config=/a");
        assert_eq!(found().as_deref(), Some("/a"));
        run("31", "kubelet --config=/b --hostname-override=other");
        assert_eq!(found().as_deref(), Some("/a"), "the second is another node's");
        run("32", "kubelet --config=/c");
        assert_eq!(found(), None, "it could be either");
        run("33", "kubelet --config=/d --hostname-override=worker");
        assert_eq!(found().as_deref(), Some("/d"));
        run("34", "kubelet --config=/e --hostname-override=worker");
        assert_eq!(found(), None);
        assert_eq!(CommandLine::find(Path::new("/nowhere"), "worker"), None);
    }

    #[test]
    fn the_overridden_hostname_is_normalized_as_in_the_kubelet() {
        let hostname = |value: &str| {
            let flag = format!("--hostname-override={value}");
            CommandLine::parse_flags([flag.as_str()].into_iter()).hostname
        };
        assert_eq!(hostname(" Worker.Example "), Some("worker.example".to_owned()));
        assert_eq!([hostname(""), hostname("  ")], [None, None]);
    }
}
