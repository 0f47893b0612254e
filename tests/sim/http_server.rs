//! The HTTP server of metrics and probes, with ordinary clients and with ones that send too much or too
//! slowly.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use numacast::config::Endpoint;
use numacast::telemetry::health::{All, Probes};
use numacast::telemetry::registry::Registry;
use numacast::telemetry::server::{Endpoints, Server};
use prometheus_client::metrics::MetricType;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, advance};

use crate::support::{ANY_PORT, get, send, with_frozen_clock};

/// Endpoints with metrics only.
fn metrics(metrics: Arc<Registry>) -> Endpoints {
    Endpoints { metrics: Some(metrics), health: None }
}

async fn server() -> Server {
    Server::start(Endpoint::At(ANY_PORT), metrics(Arc::default()), None).await.unwrap().unwrap()
}

#[tokio::test]
async fn other_paths_and_methods_are_rejected_with_a_reason() {
    let server = server().await;
    let response = get(server.address(), "/").await;
    assert!(response.starts_with("HTTP/1.1 404 Not Found\r\n"), "{response}");
    assert!(response.ends_with("\r\n\r\nthere is only /metrics\n"), "{response}");
    let request = "POST /metrics HTTP/1.1\r\nHost: numacast\r\nContent-Length: 0\r\n\r\n";
    let response = send(server.address(), request).await;
    assert!(response.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{response}");
    assert!(response.contains("allow: GET, HEAD\r\n"), "{response}");
    let response = send(server.address(), "HEAD /metrics HTTP/1.1\r\nHost: numacast\r\n\r\n").await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n") && response.ends_with("\r\n\r\n"), "{response}");
}

/// Opens a connection from `source` and sends `data`.
async fn connect(source: Ipv4Addr, to: SocketAddr, data: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    stream.write_all(data.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn a_thousand_idle_or_slow_connections_from_one_address_delay_no_request() {
    let files = Resource::Nofile;
    setrlimit(files, Rlimit { current: Some(4096), ..getrlimit(files) }).unwrap();
    for attacker in [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST] {
        let server = server().await;
        let mut open = Vec::new();
        with_frozen_clock(async {
            let slow = ["", "G", "GET /metrics HTTP/1.1\r\nHost: numacast\r\n"];
            for data in slow.iter().cycle().take(1000) {
                open.push(connect(attacker, server.address(), data).await);
                if open.len() % 100 == 0 {
                    let response = get(server.address(), "/metrics").await;
                    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_thousand_connections_before_the_first_accept_block_no_request() {
    let files = Resource::Nofile;
    setrlimit(files, Rlimit { current: Some(4096), ..getrlimit(files) }).unwrap();
    let all = [Endpoint::Everywhere(0), Endpoint::At(ANY_PORT)];
    for endpoint in all {
        let server = Server::start(endpoint, metrics(Arc::default()), None).await.unwrap().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.address().port()));
        // The server's task does not run until this one awaits.
        let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        let _open: Vec<_> = (0..1000).map(connect).collect();
        let response = get(address, "/metrics").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    }
}

/// Returns the response to a request that is sent after this many connections from `source` were opened.
async fn response_after_connections(source: Ipv4Addr, count: usize) -> String {
    let files = Resource::Nofile;
    setrlimit(files, Rlimit { current: Some(4096), ..getrlimit(files) }).unwrap();
    let server = server().await;
    with_frozen_clock(async {
        let mut scraper = connect(Ipv4Addr::LOCALHOST, server.address(), "").await;
        let mut open = Vec::new();
        for _ in 0..count {
            open.push(connect(source, server.address(), "").await);
        }
        // The server may have closed it already.
        let _ = scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: numacast\r\n\r\n").await;
        let mut response = String::new();
        let _ = scraper.read_to_string(&mut response).await;
        response
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn many_connections_close_none_from_another_address_and_hundreds_none_from_their_own() {
    for (source, count) in [(Ipv4Addr::new(127, 0, 0, 2), 600), (Ipv4Addr::LOCALHOST, 200)] {
        let response = response_after_connections(source, count).await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{source}: {response}");
    }
}

/// Makes this many requests from `source`, one after another, and returns the number of responses.
async fn count_responses(source: Ipv4Addr, to: SocketAddr, count: usize) -> usize {
    let mut responses = 0;
    for _ in 0..count {
        let mut stream = connect(source, to, "").await;
        // The server may have closed it already.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: numacast\r\n\r\n").await;
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response).await;
        responses += usize::from(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    responses
}

#[tokio::test(start_paused = true)]
async fn the_rate_limit_of_one_address_does_not_affect_another() {
    let server = server().await;
    let (attacker, kubelet) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST);
    with_frozen_clock(async {
        assert_eq!(count_responses(attacker, server.address(), 200).await, 100);
        assert_eq!(count_responses(kubelet, server.address(), 8).await, 8);
    })
    .await;
    advance(Duration::from_secs(1)).await;
    let again = with_frozen_clock(count_responses(attacker, server.address(), 200)).await;
    assert_eq!(again, 50);
}

#[tokio::test(start_paused = true)]
async fn each_address_has_a_few_requests_beyond_the_limit_of_all() {
    let server = server().await;
    with_frozen_clock(async {
        let mut all = 0;
        for last in 2..10 {
            all += count_responses(Ipv4Addr::new(127, 0, 0, last), server.address(), 110).await;
        }
        assert_eq!(all, 400 + 8 * 8);
        assert_eq!(count_responses(Ipv4Addr::LOCALHOST, server.address(), 8).await, 8);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn metrics_are_encoded_at_most_ten_times_a_second() {
    static ENCODED: AtomicUsize = AtomicUsize::new(0);
    let mut registry = Registry::default();
    let encoded = || Some(ENCODED.fetch_add(1, Ordering::SeqCst) as f64);
    registry.computed("encoded", MetricType::Gauge, "How often it was encoded", encoded);
    let endpoints = metrics(Arc::new(registry));
    let server = Server::start(Endpoint::At(ANY_PORT), endpoints, None).await.unwrap().unwrap();
    for round in 0..3 {
        with_frozen_clock(async {
            for _ in 0..5 {
                let response = get(server.address(), "/metrics").await;
                assert!(response.ends_with(&format!("\nencoded {round}.0\n# EOF\n")), "{response}");
            }
        })
        .await;
        advance(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed_after_two_seconds() {
    let server = server().await;
    for data in ["", "GET /metrics HTTP/1.1\r\n"] {
        let mut stream = connect(Ipv4Addr::LOCALHOST, server.address(), data).await;
        let start = Instant::now();
        let closed = stream.read(&mut [0; 512]).await;
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
        assert!(start.elapsed() < Duration::from_secs(3), "by the virtual clock: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_long_header_is_rejected() {
    let request = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    let response = send(server().await.address(), &request).await;
    assert!(response.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{response}");
}

#[tokio::test]
async fn a_port_in_use_is_an_error_that_names_the_key() {
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let address = listener.local_addr().unwrap();
    let error = Server::start(Endpoint::At(address), metrics(Arc::default()), None).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "metrics are not served: cannot listen on {address}: Address already in use (os error 98); set \
             `metrics.address` to another address, or to none"
        )
    );
}

#[tokio::test]
async fn a_port_on_every_address_accepts_ipv4_and_ipv6() {
    let server =
        Server::start(Endpoint::Everywhere(0), metrics(Arc::default()), None).await.unwrap().unwrap();
    let port = server.address().port();
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), (Ipv6Addr::LOCALHOST, port).into()] {
        // A kernel without IPv6 has one family only.
        if address.is_ipv6() && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_err() {
            continue;
        }
        let response = get(address, "/metrics").await;
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{address}: {response}");
    }
    assert!(Server::start(Endpoint::Nowhere, metrics(Arc::default()), None).await.unwrap().is_none());
}

#[tokio::test]
async fn a_dropped_server_frees_its_port() {
    let server = server().await;
    let address = server.address();
    let open = TcpStream::connect(address).await.unwrap();
    drop(server);
    let mut tries = 0;
    while TcpStream::connect(address).await.is_ok() {
        tries += 1;
        assert!(tries < 1_000, "the port is still open");
        tokio::task::yield_now().await;
    }
    drop(open);
}

#[tokio::test]
async fn a_server_of_probes_has_no_metrics() {
    let health: Option<Arc<dyn Probes>> = Some(Arc::new(All(Vec::new())));
    let server = Server::start(Endpoint::At(ANY_PORT), Endpoints { metrics: None, health }, None)
        .await
        .unwrap()
        .unwrap();
    let response = get(server.address(), "/metrics").await;
    assert!(response.starts_with("HTTP/1.1 404 "), "{response}");
    assert!(response.ends_with("\r\n\r\nthere is only /livez, /readyz and /startupz\n"), "{response}");
}
