//! Tests of the limits.

use super::*;
use crate::grpc::server::ACCEPT_BURST;

/// Counts when the buffer it owns is dropped.
struct Watched(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shared_buffer_is_freed_when_stalled_clients_are_disconnected() {
    let server = start(Limits::default());
    let gone = Arc::new(AtomicUsize::new(0));
    let large: Vec<u8> = (0..5 << 20).map(|at| (at % 251) as u8).collect();
    *server.state.large.lock().unwrap() = Bytes::from_owner(Watched(large.clone(), Arc::clone(&gone)));
    let mut stalled = Vec::new();
    for _ in 0..20 {
        let mut client = server.client().await;
        let body = stall(&mut client, "/t/Large").await;
        stalled.push((client, body));
    }
    // It is one response, and others receive it meanwhile.
    for _ in 0..3 {
        assert_eq!(server.call("/t/Large", b"").await, Response::ok(&large));
    }
    *server.state.large.lock().unwrap() = Bytes::new();
    assert_eq!((gone.load(Ordering::SeqCst), server.violations()), (0, vec![]));
    let begun = Instant::now();
    until(|| gone.load(Ordering::SeqCst) == 1).await;
    assert!((8..=12).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.violations(), [("stalled", 20)]);
}

#[tokio::test(start_paused = true)]
async fn memory_kept_by_stalled_clients_is_bounded() {
    // Half of it for one client: two responses of 1 MiB before a third has to wait.
    let server = start(Limits { response_bytes: 4 << 20, ..Limits::default() });
    let mut stalled = Vec::new();
    for _ in 0..2 {
        let mut client = server.client().await;
        let body = stall(&mut client, "/t/Fresh").await;
        stalled.push((client, body));
    }
    let begun = Instant::now();
    let answer = server.call("/t/Fresh", b"").await;
    assert_eq!(answer, Response::ok(&vec![1; 1 << 20]), "after the stalled ones were disconnected");
    assert!((1..=4).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.violations(), [("stalled", 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_too_long_to_run_is_rejected() {
    let server = start(Limits { running_calls_per_client: 2, ..Limits::default() });
    let mut client = server.client().await;
    let hang = || request("/t/Hang").body(()).unwrap();
    let _hanging = [send(&mut client, hang(), framed(b"")), send(&mut client, hang(), framed(b""))];
    until(|| server.hanging() == 2).await;
    let text = "too many calls: this one waited for 5s";
    assert_eq!(server.call("/t/Echo", b"").await, Response::status(Code::ResourceExhausted, text));
    assert_eq!(server.violations(), [("calls", 1)]);
}

#[tokio::test]
async fn open_calls_are_bounded() {
    let server = start(Limits { open_calls_per_client: 3, running_calls_per_client: 1, ..Limits::default() });
    let mut client = server.client().await;
    let hang = || request("/t/Hang").body(()).unwrap();
    let hanging: Vec<_> = (0..3).map(|_| send(&mut client, hang(), framed(b""))).collect();
    let rejected = Response::status(Code::ResourceExhausted, "too many calls are open");
    assert_eq!(call(&mut client, "/t/Echo", b"").await, rejected);
    drop(hanging);
    until(|| server.finished().len() == 4).await;
    assert_eq!(call(&mut client, "/t/Echo", b"").await, Response::ok(b""));
}

#[tokio::test(start_paused = true)]
async fn failures_by_the_hundred_are_delayed() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let begun = Instant::now();
    for _ in 0..1000 {
        assert_eq!(call(&mut client, "/t/No", b"").await.code, Code::Unimplemented as i32);
    }
    // 400 of them at once, then 200 per second.
    assert!((2900..3100).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(server.violations(), [("failures", 600)]);
}

/// Even after thousands of failed and abandoned calls.
#[tokio::test(start_paused = true)]
async fn the_delay_of_failures_is_bounded() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    for _ in 0..3000 {
        let request = request("/t/No").header("grpc-timeout", "1m").body(()).unwrap();
        client = client.ready().await.unwrap();
        answer(send(&mut client, request, framed(b""))).await.unwrap();
    }
    let begun = Instant::now();
    assert_eq!(call(&mut client, "/t/No", b"").await.code, Code::Unimplemented as i32);
    assert_eq!(begun.elapsed().as_secs(), 5, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn connections_are_accepted_at_a_limited_rate() {
    let (server, begun) = (start(Limits::default()), Instant::now());
    for _ in 0..ACCEPT_BURST as usize + 1000 {
        assert_eq!(server.call("/t/Echo", b"x").await, Response::ok(b"x"));
    }
    assert!((900..1100).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn two_hundred_connections_of_one_process_are_served() {
    let server = start(Limits::default());
    let clients = (0..200).map(|_| async {
        let mut client = server.client().await;
        for _ in 0..20 {
            assert_eq!(call(&mut client, "/t/Echo", b"x").await, Response::ok(b"x"));
        }
    });
    futures::future::join_all(clients).await;
    assert_eq!(server.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_new_connection_must_send_something_and_may_then_be_idle() {
    let server = start(Limits::default());
    let mut idle = server.client().await;
    let silent = server.stream().await;
    let mut half = server.stream().await;
    half.write_all(&PREFACE[..10]).await.unwrap();
    let begun = Instant::now();
    tokio::join!(closed(silent), closed(half));
    assert!((9..=11).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.violations(), [("silent", 2)]);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(call(&mut idle, "/t/Echo", b"x").await, Response::ok(b"x"));
}

#[tokio::test]
async fn protocol_violations_close_the_connection() {
    let server = start(Limits::default());
    let settings_on_a_stream = [PREFACE, b"\0\0\0\x04\0\0\0\0\x01"].concat();
    let too_long = [PREFACE, b"\x10\0\0\0\0\0\0\0\x01"].concat();
    let no_hpack = [PREFACE, b"\0\0\x03\x01\x05\0\0\0\x01\xff\xff\xff"].concat();
    let invalid =
        [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &settings_on_a_stream, &too_long, &no_hpack];
    for (count, bytes) in (1..).zip(invalid) {
        let mut stream = server.stream().await;
        stream.write_all(bytes).await.unwrap();
        closed(stream).await;
        assert_eq!(server.violations(), [("protocol", count)]);
    }
    // Connecting and disconnecting, as a probe does, is no violation.
    drop(server.stream().await);
    assert_eq!(server.call("/t/Echo", b"x").await, Response::ok(b"x"));
    assert_eq!(server.violations(), [("protocol", invalid.len())]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_pings_is_read_slowly() {
    let server = start(Limits::default());
    let mut stream = server.stream().await;
    stream.write_all(PREFACE).await.unwrap();
    let (mut answers, mut pings) = stream.into_split();
    let flood = tokio::spawn(async move {
        let many = b"\0\0\x08\x06\0\0\0\0\0 a ping ".repeat(1000);
        while pings.write_all(&many).await.is_ok() {}
    });
    let begun = Instant::now();
    // A burst of one second, and five seconds more.
    let mut rest = 6 * 65_536 * 17;
    let mut buffer = vec![0; 1 << 16];
    while rest > 0 {
        rest -= answers.read(&mut buffer).await.unwrap().min(rest);
    }
    assert!((4..=6).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    flood.abort();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_disconnected() {
    let server = start(Limits::default());
    let mut stream = server.stream().await;
    stream.write_all(PREFACE).await.unwrap();
    let pings = b"\0\0\x08\x06\0\0\0\0\0 a ping ".repeat(1000);
    let begun = Instant::now();
    // The responses are not read.
    while stream.write_all(&pings).await.is_ok() {}
    assert!((9..=13).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert_eq!(server.violations(), [("stalled", 1)]);
}

#[tokio::test]
async fn connections_of_one_client_are_bounded() {
    let server = start(Limits { connections_per_client: 2, ..Limits::default() });
    let mut first = server.client().await;
    let mut second = server.client().await;
    assert_eq!(call(&mut first, "/t/Echo", b"1").await, Response::ok(b"1"));
    let hanging = send(&mut second, request("/t/Hang").body(()).unwrap(), framed(b""));
    until(|| server.hanging() == 1).await;
    let mut third = server.client().await;
    assert_eq!(call(&mut third, "/t/Echo", b"3").await, Response::ok(b"3"));
    assert!(first.ready().await.is_err(), "the oldest that was idle is closed");
    assert_eq!(server.violations(), [("connections", 1)]);
    assert_eq!(server.hanging(), 1);
    drop(hanging);
}

#[tokio::test]
async fn a_stream_is_not_polled_while_its_client_does_not_read() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let body = stall(&mut client, "/t/Count").await;
    // The client's window of 64 KiB, and the message that waits.
    for _ in 0..20 {
        assert_eq!(server.call("/t/Echo", b"x").await, Response::ok(b"x"));
    }
    let asked = server.state.counted.load(Ordering::SeqCst);
    assert!((6..=8).contains(&asked), "{asked}");
    drop(body);
    let all = server.call("/t/Count", b"").await;
    assert_eq!((all.code, all.messages.len()), (0, 1000));
    assert!(all.messages.iter().all(|message| *message == [7; 10_000]));
}

#[tokio::test(start_paused = true)]
async fn the_response_timeout_includes_the_wait_to_run() {
    let server = start(Limits { running_calls_per_client: 1, ..Limits::default() });
    let mut client = server.client().await;
    let first = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
    until(|| server.hanging() == 1).await;
    // The second call may run when the first has timed out.
    sleep(Duration::from_secs(4)).await;
    let begun = Instant::now();
    let second = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
    for (response, seconds) in [(first, 4_u128), (second, 8)] {
        let head = response.await.unwrap();
        assert_eq!(head.headers()["grpc-status"], "14");
        assert_eq!(head.headers()["grpc-message"], "numacast:%20no%20response%20within%208s");
        let took = begun.elapsed().as_millis().abs_diff(1000 * seconds);
        assert!(took < 500, "{:?}", begun.elapsed());
    }
    assert_eq!(server.hanging(), 0);
}

/// In addition there are h2's buffers: 24 KiB for each connection, of which an idle one uses the first pages.
#[test]
fn the_futures_of_connections_and_calls_are_small() {
    fn connection<F, A, B, C>(_: impl Fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }
    fn call<F, A, B, C, D>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    let sizes = (connection(crate::grpc::connection::serve), call(crate::grpc::call::serve));
    assert!(sizes.0 <= 6 << 10 && sizes.1 <= 2 << 10, "{sizes:?}");
}
