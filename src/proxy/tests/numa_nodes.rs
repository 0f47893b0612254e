//! The NUMA nodes of devices.

use super::*;

#[test]
fn numa_nodes_are_as_reported_or_from_sysfs() {
    let files = [
        ("0000:01:00.0", "0\n"),
        ("0000:01:00.1", "1\n"),
        ("0000:02:00.0", "-1\n"),
        ("0000:03:00.0", "2\n"),
        ("0000:04:00.0", "1024\n"),
        ("0000:05:00.0", "x\n"),
    ];
    let read =
        files.map(|(address, text)| (format!("sys/bus/pci/devices/{address}/numa_node"), text.to_owned()));
    let pci = Arc::new(PciDevices::new(RecordedFiles { read: read.into(), ..RecordedFiles::default() }));
    let mut card = device("rdma", "0000:01:00.0", 0, Some(5));
    card.functions = ["0000:01:00.1".into(), "0000:01:00.2".into()].into();
    let unplaced = Device { bus: "00000000:03:00.0".into(), ..device("gpu", "GPU-b", 1, None) };
    let devices =
        vec![device("gpu", "GPU-a", 0, Some(3)), unplaced, card, device("rdma", "0000:02:00.0", 1, None)];
    let all = KoordinatorDevices { vendor: "".into(), devices: devices.into() };
    let reported = NodeDevices::new(Some(Arc::new(all)), Arc::clone(&pci));
    let unreported = NodeDevices::new(None, pci);
    let cards = |ids: &str| {
        let entries: Vec<String> = ids.split(' ').map(|id| format!(r#"{{"id":"{id}"}}"#)).collect();
        format!(r#"{{"rdma":[{}]}}"#, entries.join(","))
    };
    assert_eq!(
        of(r#"{"gpu":[{"id":"GPU-a"},{"id":"GPU-b"}]}"#, &reported),
        "p/main: nvidia.com/gpu=GPU-a@3 nvidia.com/gpu=GPU-b@2"
    );
    let all = "0000:01:00.0 0000:01:00.1 0000:01:00.2 0000:02:00.0";
    assert_eq!(
        of(&cards(all), &reported),
        "p/main: koordinator.sh/rdma=0000:01:00.0,0000:01:00.1,0000:01:00.2@5 koordinator.sh/rdma=0000:02:00.0",
        "functions are where their card is"
    );
    let all = "0000:01:00.0 0000:01:00.1 0000:01:00.2 0000:02:00.0 0000:04:00.0 0000:05:00.0 0000:03:00.0";
    assert_eq!(
        of(&cards(all), &unreported),
        "p/main: koordinator.sh/rdma=0000:01:00.0@0 koordinator.sh/rdma=0000:01:00.1@1 \
         koordinator.sh/rdma=0000:01:00.2,0000:02:00.0,0000:04:00.0,0000:05:00.0 koordinator.sh/rdma=0000:03:00.0@2"
    );
}
