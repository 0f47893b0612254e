//! The pictures of `show` and `fit` in docs/: what they print in terminals of 80 and 200 columns.
//!
//! `NUMACAST_WRITE_DOCS=1 cargo test --test real pictures` draws them again. Ages are replaced, since they change from
//! run to run.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use numacast::quantity::Quantity;
use serde_json::{Value, json};

use crate::screen::{Screen, svg};
use crate::show::{add_attribute, object_of, withheld};
use crate::support::process::tethered;
use crate::support::{Cluster, Needs, Parts, nrt};

const COLUMNS: [usize; 2] = [80, 200];

/// Draws what a command prints in terminals of both sizes, and compares that with the pictures `docs/images/<name>-*.svg`,
/// or writes them. `steady` replaces what changes from run to run.
pub(crate) async fn compare(
    kubeconfig: &Path,
    name: &str,
    arguments: &str,
    steady: fn(&str) -> String,
) -> Result<()> {
    for columns in COLUMNS {
        let output = steady(&in_terminal(kubeconfig, columns, arguments).await?);
        let screen = Screen::read(&format!("$ \x1b[1mnumacast {arguments}\x1b[0m\r\n{output}"), columns);
        let picture = svg(columns, screen.height(), "", &screen.svg());
        let file = format!("docs/images/{name}-{columns}.svg");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
        if std::env::var_os("NUMACAST_WRITE_DOCS").is_some() {
            std::fs::write(path, picture)?;
            continue;
        }
        let documented = std::fs::read_to_string(path).with_context(|| file.clone())?;
        ensure!(
            documented == picture,
            "{file} is out of date: run `NUMACAST_WRITE_DOCS=1 cargo test --test real pictures`; now it is\n{output}"
        );
    }
    Ok(())
}

async fn in_terminal(kubeconfig: &Path, columns: usize, arguments: &str) -> Result<String> {
    let (program, kubeconfig) = (env!("CARGO_BIN_EXE_numacast"), kubeconfig.display());
    let line = format!("stty cols {columns} rows 50; exec {program} {arguments} --kubeconfig {kubeconfig}");
    let mut command = tethered("script");
    command.args(["--quiet", "--flush", "--command", &line, "/dev/null"]);
    command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    Ok(String::from_utf8(output.stdout)?)
}

/// Replaces the ages: those of a title, and those at the end of a table's rows.
fn with_fixed_ages(output: &str) -> String {
    let mut ages = ["12s", "4m10s", "2s", "3d2h", "51s"].into_iter().cycle();
    let mut line = |line: &str| {
        if let Some((before, rest)) = line.split_once("  changed ")
            && let Some((_, end)) = rest.rsplit_once('\x1b')
        {
            return format!("{before}  changed 51s ago, age 5d3h\x1b{end}");
        }
        match line.rsplit_once(' ') {
            Some((before, last)) if is_age(last) => format!("{before} {}", ages.next().unwrap_or_default()),
            _ => line.to_owned(),
        }
    };
    output.split("\r\n").map(&mut line).collect::<Vec<_>>().join("\r\n")
}

fn is_age(word: &str) -> bool {
    let number = word.strip_suffix(['s', 'm', 'h']).unwrap_or_default();
    !number.is_empty() && number.chars().all(|c| c.is_ascii_alphanumeric())
}

/// A pod on `xeon`. What it has makes its zone the only possible one.
struct Placed {
    namespace: &'static str,
    name: &'static str,
    zone: usize,
    priority_class: Option<&'static str>,
    resources: &'static [(&'static str, &'static str)],
}

const PODS: [Placed; 3] = [
    Placed {
        namespace: "ml",
        name: "train-0",
        zone: 0,
        priority_class: None,
        resources: &[("cpu", "4"), ("memory", "6Gi"), ("example.com/nic", "1")],
    },
    Placed {
        namespace: "ml",
        name: "train-1",
        zone: 1,
        priority_class: None,
        resources: &[("cpu", "2"), ("memory", "3Gi"), ("example.com/bridge", "1")],
    },
    Placed {
        namespace: "db",
        name: "postgres-0",
        zone: 1,
        priority_class: Some("important"),
        resources: &[("cpu", "3"), ("memory", "4Gi"), ("hugepages-1Gi", "1Gi")],
    },
];

/// Takes what the pods have from an object in which everything is free.
fn take(object: &mut Value) -> Result<()> {
    let amount =
        |text: &str| -> Result<u64> { Ok(text.parse::<Quantity>().map_err(anyhow::Error::msg)?.ceil()) };
    for (at, zone) in object["zones"].as_array_mut().context("no zones")?.iter_mut().enumerate() {
        for resource in zone["resources"].as_array_mut().context("no resources")? {
            let mut free = amount(resource["allocatable"].as_str().context("no amount")?)?;
            let name = resource["name"].as_str().context("no name")?.to_owned();
            let in_zone = PODS.iter().filter(|pod| pod.zone == at).flat_map(|pod| pod.resources);
            for (_, text) in in_zone.filter(|(resource, _)| *resource == name) {
                free = free.checked_sub(amount(text)?).context("there is not that much")?;
            }
            resource["available"] = json!(free.to_string());
        }
    }
    Ok(())
}

async fn apply(client: &Client, object: &Value, manager: &str) -> Result<()> {
    let name = object["metadata"]["name"].as_str().context("it has a name")?;
    let params = PatchParams::apply(manager).force();
    nrt::api(client).patch(name, &params, &Patch::Apply(object)).await?;
    Ok(())
}

/// Adds the Node of an object: it has what the zones have together.
async fn add_node(client: &Client, object: &Value) -> Result<()> {
    let name = object["metadata"]["name"].as_str().context("it has a name")?;
    let mut amounts = std::collections::BTreeMap::from([("pods".to_owned(), 110)]);
    for resource in object["zones"]
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|zone| zone["resources"].as_array())
        .flatten()
    {
        let name = resource["name"].as_str().unwrap_or_default().to_owned();
        *amounts.entry(name).or_insert(0) +=
            resource["allocatable"].as_str().unwrap_or_default().parse::<u64>()?;
    }
    let amounts: Value =
        amounts.into_iter().map(|(name, amount)| (name, json!(amount.to_string()))).collect();
    let info = [
        "architecture",
        "bootID",
        "containerRuntimeVersion",
        "kernelVersion",
        "kubeProxyVersion",
        "machineID",
        "operatingSystem",
        "osImage",
        "systemUUID",
    ];
    let mut info: Value = info.into_iter().map(|key| (key.to_owned(), json!(""))).collect();
    info["kubeletVersion"] = json!("v1.36.3");
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": name},
        "status": {"capacity": amounts, "allocatable": amounts, "nodeInfo": info, "conditions": [{"type": "Ready", "status": "True"}]},
    }))?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await?;
    // The API server taints new Nodes.
    nodes.patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": {"taints": null}}))).await?;
    Ok(())
}

async fn create<T>(api: Api<T>, object: Value) -> Result<()>
where
    T: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}

async fn add_pods(client: &Client) -> Result<()> {
    create::<PriorityClass>(
        Api::all(client.clone()),
        json!({"metadata": {"name": "important"}, "value": 1000}),
    )
    .await?;
    for namespace in ["ml", "db"] {
        create::<Namespace>(Api::all(client.clone()), json!({"metadata": {"name": namespace}})).await?;
    }
    for Placed { namespace, name, priority_class, resources, .. } in PODS {
        let resources: Value =
            resources.iter().map(|(name, amount)| ((*name).to_owned(), json!(amount))).collect();
        let pod = json!({
            "metadata": {"name": name, "labels": {"app": namespace}},
            "spec": {"nodeName": "xeon", "priorityClassName": priority_class, "containers": [
                {"name": "main", "image": "a", "resources": {"limits": resources, "requests": resources}}]},
        });
        create::<Pod>(Api::namespaced(client.clone(), namespace), pod).await?;
    }
    // Its status has no disruption allowed, since no controller runs.
    let budget =
        json!({"metadata": {"name": "postgres"}, "spec": {"selector": {"matchLabels": {"app": "db"}}}});
    create::<PodDisruptionBudget>(Api::namespaced(client.clone(), "db"), budget).await
}

#[tokio::test]
async fn the_pictures_show_what_is_printed() -> Result<()> {
    let Some(parts) = Parts::for_test(Needs::ApiServer)? else { return Ok(()) };
    let cluster = Cluster::start(&parts).await?;
    let client = cluster.client();
    let mut xeon = object_of("xeon", "machine-two-by-eight")?;
    xeon["attributes"][0]["value"] = json!("single-numa-node");
    take(&mut xeon)?;
    let mut plain = object_of("plain", "machine-no-numa")?;
    add_attribute(&mut plain, withheld());
    let power9 = object_of("power9", "machine-power9")?;
    let epyc = object_of("epyc-snc", "machine-snc-two-sockets")?;
    for object in [&xeon, &plain, &power9, &epyc, &object_of("grace", "machine-gb200")?] {
        apply(&client, object, "numacast").await?;
        add_node(&client, object).await?;
    }
    apply(&client, &power9, "nfd").await?;
    add_pods(&client).await?;
    let file = cluster.admin_kubeconfig();
    compare(&file, "show", "show", with_fixed_ages).await?;
    compare(&file, "show-node", "show xeon", with_fixed_ages).await?;
    let as_is = |output: &str| output.to_owned();
    compare(&file, "fit-yes", "fit --cpu 4 --memory 4Gi --device example.com/nic=1", as_is).await?;
    compare(&file, "fit-no", "fit --cpu 5 --memory 4Gi --node xeon --make-room", as_is).await
}

#[test]
fn only_ages_are_replaced() {
    let output = "NODE   CHANGED\r\na   \x1b[32mOK\x1b[0m   7s\r\nb   2m\r\nc  policy  changed 7s ago, age 9s\x1b[0m\r\n  nic ██ 1 free\r\n";
    let expected = "NODE   CHANGED\r\na   \x1b[32mOK\x1b[0m   12s\r\nb   4m10s\r\nc  policy  changed 51s ago, age 5d3h\x1b[0m\r\n  nic ██ 1 free\r\n";
    assert_eq!(with_fixed_ages(output), expected);
}
