//! Pod sources: which is served, mirror pods, and invalid pods.

use super::*;

/// Returns a mirror pod as in the API server. Its name is a second field in the message: the last one wins.
fn mirror(uid: &str, name: &str, of: &str) -> Pod {
    let mut mirror = pod(uid, &[("kubernetes.io/config.mirror", of)], "Running", "");
    let Some(RawPod::Protobuf(bytes)) = mirror.raw.as_deref() else { panic!("it is encoded") };
    let (mut metadata, mut message) = (Vec::new(), bytes.to_vec());
    put_bytes(&mut metadata, 1, name.as_bytes());
    put_bytes(&mut message, 1, &metadata);
    (mirror.name, mirror.raw) = (name.into(), Some(Box::new(RawPod::Protobuf(message.into()))));
    mirror
}

#[test]
fn a_pod_that_claims_to_be_a_mirror_replaces_no_pod() {
    let names = |store: &Store| -> Vec<String> {
        let shown = ListPodConditionsResponse::decode(lock(&store.infos).list()).unwrap().pods;
        shown.iter().map(|pod| format!("{}={}", pod.pod_uid, pod.pod_name)).collect()
    };
    let (mut store, _) = store();
    let all = [pod("v", &[], "Running", ""), mirror("m", "etcd-worker", "h")].map(PodEvent::InitApply);
    apply(&mut store, [PodEvent::Init]);
    apply(&mut store, all);
    apply(&mut store, [PodEvent::InitDone]);
    assert_eq!(names(&store), ["h=etcd-worker", "v=v"]);
    // The UID of an ordinary pod and of a static pod. The other pod's own UID sorts before and after them.
    for (victim, own) in ["v", "h"].into_iter().flat_map(|victim| [(victim, "e"), (victim, "z")]) {
        let mut all = [format!("{own}=evil"), "h=etcd-worker".to_owned(), "v=v".to_owned()];
        all.sort_unstable();
        apply(&mut store, [PodEvent::Apply(mirror(own, "evil", victim))]);
        assert_eq!(names(&store), all, "{victim} {own}");
        // The same after the victim changes and after all pods are evaluated anew.
        apply(&mut store, [PodEvent::Apply(pod("v", &[], "Running", victim))]);
        apply(&mut store, [PodEvent::Apply(mirror("m", "etcd-worker", "h"))]);
        assert_eq!(names(&store), all, "{victim} {own}");
        apply(&mut store, [PodEvent::Delete(mirror(own, "evil", victim))]);
        assert_eq!(names(&store), ["h=etcd-worker", "v=v"], "{victim} {own}");
    }
    // The impostor came first.
    apply(
        &mut store,
        [PodEvent::Delete(pod("v", &[], "Running", "")), PodEvent::Apply(mirror("e", "evil", "v"))],
    );
    assert_eq!(names(&store), ["h=etcd-worker", "v=evil"], "no other pod has that UID");
    apply(&mut store, [PodEvent::Apply(pod("v", &[], "Running", ""))]);
    assert_eq!(names(&store), ["e=evil", "h=etcd-worker", "v=v"]);
}

#[test]
fn a_mirror_is_found_by_either_uid() {
    let (mut store, _) = store();
    let now = Instant::now();
    let mirror = |uid: &str| mirror(uid, "etcd-worker", "h");
    let list = [PodEvent::Init, PodEvent::InitApply(mirror("m1")), PodEvent::InitDone];
    apply(&mut store, list);
    for cache in [&store.pods, &store.infos] {
        for uid in ["m1", "h"] {
            assert!(lock(cache).get(uid).is_ok(), "{uid}");
        }
        assert!(lock(cache).get("m2").is_err() && lock(cache).get("").is_err());
    }
    let mut watch = Watch::new(Arc::clone(&store.infos));
    drop([poll(&mut watch), poll(&mut watch)]);
    // The mirror was deleted and recreated by the kubelet before the deletion was reported.
    store.apply(PodEvent::Apply(mirror("m2")), now).unwrap();
    store.apply(PodEvent::Delete(mirror("m1")), now).unwrap();
    assert!(poll(&mut watch).is_pending(), "the static pod has not changed");
    let shown = ListPodConditionsResponse::decode(lock(&store.infos).list()).unwrap().pods;
    assert_eq!(shown.iter().map(|pod| &*pod.pod_uid).collect::<Vec<_>>(), ["h"]);
    store.apply(PodEvent::Delete(mirror("m2")), now).unwrap();
    assert_eq!(lock(&store.infos).entries.len(), 0);
}

#[test]
fn of_two_mirrors_of_one_name_the_newest_is_served() {
    let mirror = |uid: &str| mirror(uid, "etcd-worker", "h");
    // In either order of their UIDs.
    for (older, newer) in [("a", "b"), ("b", "a")] {
        let (mut store, _) = store();
        apply(&mut store, [PodEvent::Init, PodEvent::InitApply(mirror(older)), PodEvent::InitDone]);
        apply(&mut store, [PodEvent::Apply(mirror(newer))]);
        // An unrelated pod changes nothing.
        for event in [None, Some(PodEvent::Apply(pod("u", &[], "Running", "")))] {
            event.into_iter().for_each(|event| apply(&mut store, [event]));
            let infos = lock(&store.infos);
            assert!(infos.get("h").is_ok() && infos.get(newer).is_ok(), "{newer}");
            assert_eq!(infos.get(older).err(), Some(GetError::NotFound), "{newer}");
        }
    }
}

#[test]
fn pods_of_the_kubelet_are_served_until_full_pods_are_listed() {
    let (mut store, _) = store();
    let now = Instant::now();
    let uids = |store: &Store| listed(&store.infos, uid_of_info).into_keys().collect::<Vec<_>>();
    let full = |uid: &str| pod(uid, &[], "Running", "");
    let from_kubelet = |uid: &str| kubelet_pod(uid, &[], "Running");
    let list = |store: &mut Store, uids: &[&str]| {
        store.apply_kubelet(PodEvent::Init, now).unwrap();
        uids.iter().for_each(|uid| store.apply_kubelet(PodEvent::InitApply(from_kubelet(uid)), now).unwrap());
    };
    list(&mut store, &["a"]);
    store.kubelet_list = None;
    store.apply_kubelet(PodEvent::InitDone, now).unwrap();
    assert!(!store.serves_kubelet_pods(), "its list was discarded");

    list(&mut store, &["a", "b"]);
    store.apply_kubelet(PodEvent::InitDone, now).unwrap();
    store.apply_kubelet(PodEvent::Delete(from_kubelet("b")), now).unwrap();
    store.apply_kubelet(PodEvent::Apply(from_kubelet("c")), now).unwrap();
    apply(&mut store, [PodEvent::Apply(full("d"))]);
    assert_eq!((uids(&store), store.serves_kubelet_pods()), (vec!["a".to_owned(), "c".to_owned()], true));

    apply(&mut store, [PodEvent::Init, PodEvent::InitApply(full("e")), PodEvent::InitDone]);
    store.apply_kubelet(PodEvent::Delete(from_kubelet("e")), now).unwrap();
    store.apply_kubelet(PodEvent::Apply(from_kubelet("c")), now).unwrap();
    assert_eq!((uids(&store), store.serves_kubelet_pods()), (vec!["e".to_owned()], false));

    // Another source of full pods takes over, and has not listed all pods yet.
    list(&mut store, &["a"]);
    store.apply_kubelet(PodEvent::InitDone, now).unwrap();
    store.is_source_synced = false;
    apply(&mut store, [PodEvent::Apply(full("f"))]);
    assert_eq!((uids(&store), store.serves_kubelet_pods()), (vec!["a".to_owned()], true));
    store.is_source_synced = true;
    apply(&mut store, [PodEvent::Resumed]);
    assert_eq!((uids(&store), store.serves_kubelet_pods()), (vec!["e".to_owned(), "f".to_owned()], false));
}

#[test]
fn a_static_pod_of_the_kubelet_is_found_by_either_uid() {
    let (mut store, _) = store();
    let now = Instant::now();
    let mirror = kubelet_pod("m", &[("kubernetes.io/config.mirror", "h")], "Running");
    let all = [PodEvent::Init, PodEvent::InitApply(mirror.clone()), PodEvent::InitDone];
    all.into_iter().for_each(|event| store.apply_kubelet(event, now).unwrap());
    assert!(["m", "h"].iter().all(|uid| lock(&store.infos).get(uid).is_ok()));
    store.apply_kubelet(PodEvent::Delete(mirror), now).unwrap();
    assert_eq!(lock(&store.infos).entries.len(), 0);
}

#[test]
fn an_invalid_pod_is_reported_and_the_others_are_served() {
    let (mut store, _) = store();
    let now = Instant::now();
    store.apply(PodEvent::Init, now).unwrap();
    store.apply(PodEvent::InitApply(pod("a", &[], "Running", "")), now).unwrap();
    for (strange, reason) in [
        (Pod { raw: None, ..pod("b", &[], "Running", "") }, "it is not encoded as protocol buffers"),
        (kubelet_pod("c", &[], "Running"), "it is not encoded as protocol buffers"),
        (pod("", &[], "Running", ""), "it has no UID"),
    ] {
        let name = strange.name.clone();
        let invalid = store.apply(PodEvent::InitApply(strange), now).unwrap_err();
        assert_eq!(invalid.to_string(), format!("pod ns/{name} is not served: {reason}"));
    }
    store.apply(PodEvent::InitDone, now).unwrap();
    assert_eq!(lock(&store.pods).entries.len(), 1);
}

#[test]
fn pod_info_watchers_get_only_visible_changes() {
    let (mut store, _) = store();
    let now = Instant::now();
    let list = [PodEvent::Init, PodEvent::InitApply(pod("a", &[], "Running", "1")), PodEvent::InitDone];
    apply(&mut store, list);
    let mut watch = Watch::new(Arc::clone(&store.infos));
    drop([poll(&mut watch), poll(&mut watch)]);
    store.apply(PodEvent::Apply(pod("a", &[], "Running", "2")), now).unwrap();
    assert!(poll(&mut watch).is_pending(), "PodInfo has no annotations");
    // The sources of full pods fail, and the kubelet's /pods has the same pod.
    let list = [PodEvent::Init, PodEvent::InitApply(kubelet_pod("a", &[], "Running")), PodEvent::InitDone];
    list.into_iter().for_each(|event| store.apply_kubelet(event, now).unwrap());
    assert!(store.serves_kubelet_pods() && poll(&mut watch).is_pending());
    store.apply_kubelet(PodEvent::Apply(kubelet_pod("a", &[], "Failed")), now).unwrap();
    assert!(matches!(poll(&mut watch), Poll::Ready(Some(Ok(_)))));
    // They work again: their pods are served, and `Pods` was not affected by /pods.
    store.apply(PodEvent::Resumed, now).unwrap();
    assert!(!store.serves_kubelet_pods() && matches!(poll(&mut watch), Poll::Ready(Some(Ok(_)))));
    let pods = listed(&store.pods, uid_of_pod);
    assert_eq!(pods.len(), 1);
}
