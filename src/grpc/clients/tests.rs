//! Tests of the choice of the connection to close, and of the frame budgets.

use super::*;

/// A process; 0 for an unknown one.
fn peer(pid: i32) -> Peer {
    Peer { pid: (pid > 0).then_some(pid), uid: 0, name: "test".into(), client: u64::from(pid.unsigned_abs()) }
}

/// Admits a connection and returns the ID of the connection that was closed for it.
fn admit(clients: &Arc<Clients>, admitted: &mut Vec<Admitted>, pid: i32) -> Result<Option<u64>, ()> {
    let (connection, closed) = clients.admit(peer(pid)).map_err(|_| ())?;
    admitted.push(connection);
    Ok(closed.map(|closed| closed.id))
}

fn busy(admitted: &[Admitted], ids: &[u64]) {
    for one in admitted.iter().filter(|one| ids.contains(&one.connection.id)) {
        one.connection.calls.store(1, Ordering::Relaxed);
    }
}

#[test]
fn the_client_with_the_most_connections_loses_one() {
    let (clients, admitted) = (Clients::new(6, 4), &mut Vec::new());
    for pid in [7, 8, 8, 8, 9, 9] {
        assert_eq!(admit(&clients, admitted, pid), Ok(None));
    }
    busy(admitted, &[1]);
    assert_eq!(admit(&clients, admitted, 9), Ok(Some(2)), "8 has the most, and its oldest is busy");
    assert_eq!(admitted[2].connection.shutdown.load(Ordering::Relaxed), Shutdown::Idle as u8);
    // Process 9 has three now, the most: its own oldest is closed.
    assert_eq!(admit(&clients, admitted, 9), Ok(Some(4)));
    busy(admitted, &[5, 6, 7]);
    assert_eq!(admit(&clients, admitted, 9), Err(()), "all of its own are busy");
    assert_eq!(admit(&clients, admitted, 10), Ok(Some(5)), "a new client is admitted nevertheless");
    assert_eq!(admitted[5].connection.shutdown.load(Ordering::Relaxed), Shutdown::Abort as u8);
    admitted.clear();
    let state = lock(&clients.state);
    assert!(state.connections.is_empty() && state.clients.is_empty());
}

#[test]
fn connections_of_one_client_are_bounded() {
    let (clients, admitted) = (Clients::new(100, 3), &mut Vec::new());
    for _ in 0..3 {
        assert_eq!(admit(&clients, admitted, 5), Ok(None));
    }
    busy(admitted, &[0]);
    assert_eq!(admit(&clients, admitted, 5), Ok(Some(1)));
    busy(admitted, &[2, 3]);
    assert_eq!(admit(&clients, admitted, 5), Err(()));
    assert_eq!(admit(&clients, admitted, 6), Ok(None));
}

/// Marks a connection as having had a successful call.
fn succeed(admitted: &[Admitted], id: u64) {
    admitted.iter().find(|one| one.connection.id == id).unwrap().connection.set_succeeded();
}

#[test]
fn of_clients_with_one_connection_each_the_least_used_is_closed() {
    let (clients, admitted) = (Clients::new(8, 4), &mut Vec::new());
    for _ in 0..8 {
        assert_eq!(admit(&clients, admitted, 0), Ok(None));
    }
    [0, 1, 4, 5].into_iter().for_each(|id| succeed(admitted, id));
    busy(admitted, &[2]);
    assert_eq!(admit(&clients, admitted, 0), Ok(Some(3)), "the oldest idle one without a success");
    [6, 7].into_iter().for_each(|id| succeed(admitted, id));
    // Two new ones are still given time: the newest other idle connection is closed.
    busy(admitted, &[7]);
    assert_eq!(admit(&clients, admitted, 0), Ok(Some(6)));
    assert_eq!(admit(&clients, admitted, 0), Ok(Some(8)), "the third new one");
    [2, 9, 10].into_iter().for_each(|id| succeed(admitted, id));
    busy(admitted, &(0..=10).collect::<Vec<_>>());
    assert_eq!(admit(&clients, admitted, 0), Ok(Some(10)), "the newest, if all are busy");
}

/// An attacker with the same user as everyone else, whose processes cannot be distinguished, or differ
/// for each connection.
#[test]
fn an_attackers_connections_displace_no_used_ones() {
    for pid in [|_| 0, |number| 1000 + number] {
        let (clients, admitted) = (Clients::new(512, 256), &mut Vec::new());
        admit(&clients, admitted, pid(0)).unwrap();
        succeed(admitted, 0);
        let gone = (1..1000).filter_map(|number| admit(&clients, admitted, pid(number)).unwrap());
        let gone: Vec<u64> = gone.collect();
        assert_eq!((gone.len(), gone.contains(&0)), (488, false), "its calls fail");
        admit(&clients, admitted, pid(1000)).unwrap();
        succeed(admitted, 1000);
        for number in 1001..2000 {
            assert!(!matches!(admit(&clients, admitted, pid(number)), Ok(Some(0 | 1000))));
        }
        for number in 2000..3000 {
            let gone = admit(&clients, admitted, pid(number)).unwrap().unwrap();
            assert!(gone != 0 && gone < number as u64, "its calls succeed: {gone}");
            succeed(admitted, number as u64);
        }
    }
}

#[test]
fn the_user_with_more_than_half_loses_one() {
    let (clients, admitted) = (Clients::new(9, 4), &mut Vec::new());
    for number in 0..9 {
        let peer = Peer { uid: if number % 2 == 0 { 7 } else { 0 }, ..peer(100 + number) };
        let Ok((one, None)) = clients.admit(peer) else { panic!("there is room") };
        admitted.push(one);
    }
    (0..9).for_each(|id| succeed(admitted, id));
    assert_eq!(admit(&clients, admitted, 1), Ok(Some(8)));
    // No user has more than half now: the newest of all is closed.
    succeed(admitted, 9);
    assert_eq!(admit(&clients, admitted, 2), Ok(Some(9)));
}

#[tokio::test(start_paused = true)]
async fn frames_are_bounded_and_a_client_that_sends_few_does_not_wait() {
    let (clients, admitted) = (Clients::new(512, 256), &mut Vec::new());
    for pid in 1..=100 {
        admit(&clients, admitted, pid).unwrap();
    }
    // Each is read again after its delay; the first one makes a call with a cost of some 40 now and then.
    let (begun, mut next, mut spent) = (Instant::now(), vec![Instant::now(); 100], 0);
    while begun.elapsed() < Duration::from_secs(10) {
        let now = Instant::now();
        for (at, one) in admitted.iter().enumerate() {
            if next[at] > now {
                continue;
            }
            let cost = if at == 0 { 40 } else { 1000 };
            let delay = clients.charge(&one.connection, cost);
            assert!(at > 0 || delay == ReadDelay::default(), "{delay:?} for few");
            spent += cost;
            next[at] = now + delay.own.max(delay.shared).max(Duration::from_millis(20));
        }
        tokio::time::advance(Duration::from_millis(5)).await;
    }
    // Ten seconds, and the initial burst.
    let most = 11.5 * (GUARANTEED_COST_PER_SECOND + SHARED_COST_PER_SECOND);
    assert!((spent as f64) < most, "{spent} of {most}");
    assert!(spent as f64 > 0.8 * most, "{spent} of {most}");
}
