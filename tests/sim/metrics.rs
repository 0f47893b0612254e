//! The agent's metrics, scraped over loopback.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use numacast::agent::{Agent, Settings};
use numacast::cluster::Cluster;
use numacast::config::{Config, Endpoint};
use numacast::sim::api_server::ApiServer;
use numacast::sim::kubelet::{Call, Fault};
use numacast::telemetry::metrics::Metrics;
use numacast::telemetry::server::{Endpoints, Exposition, Server};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::{Instant, advance};

use crate::support::{ANYWHERE, SimNode, ask, at_one_moment, get};

/// Endpoints with metrics only.
fn metrics(metrics: Arc<Metrics>) -> Endpoints {
    Endpoints { metrics: Some(metrics), health: None }
}

/// Returns the value of one series.
fn value(answer: &str, series: &str) -> Option<u64> {
    let line = answer.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    Some(line.parse().unwrap())
}

#[tokio::test]
async fn a_scrape_tells_of_scans_problems_and_the_build() {
    let node = SimNode::start();
    let broken = "sys/devices/system/node/node0/cpulist";
    std::fs::write(node.root().join(broken), "0-7,x\n").unwrap();
    let server = ApiServer::start_anywhere(0).await.unwrap();
    server.add_node("worker").unwrap();
    let mut config = Config { node_name: "worker".into(), ..Config::default() };
    config.host.root = node.root().to_owned();
    let cluster = Cluster::with_client(server.client().unwrap(), server.url(), config.publish.timeout.get());
    let limited = Fault::Status(tonic::Code::ResourceExhausted, "rejected by rate limit".into());
    node.kubelet.fail_next(Call::List, 2, &limited);
    let agent = Agent::new(Settings::from_config(&config), cluster);
    let scraped =
        Server::start(Endpoint::At(ANYWHERE), metrics(agent.metrics()), None).await.unwrap().unwrap();
    let agent = tokio::spawn(agent.run(std::future::pending()));
    let first = r#"numacast_writes_total{reason="first"}"#;
    let answer = loop {
        let answer = get(scraped.address(), "/metrics").await;
        if value(&answer, first).unwrap() > 0 {
            break answer;
        }
        assert!(!agent.is_finished(), "the agent has ended");
        // Within the rate of an address.
        tokio::time::sleep(Duration::from_millis(25)).await;
    };
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(answer.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"));
    assert!(answer.ends_with("# EOF\n"), "{answer}");
    assert_eq!(value(&answer, r#"numacast_scans_total{outcome="failed"}"#), Some(2));
    assert_eq!(value(&answer, r#"numacast_kubelet_errors_total{kind="rate_limited"}"#), Some(2));
    let calls = |call: &str| {
        value(&answer, &format!("numacast_kubelet_call_duration_seconds_count{{call=\"{call}\"}}")).unwrap()
    };
    assert!(calls("List") >= 3 && calls("GetAllocatableResources") >= 1);
    assert!(value(&answer, "numacast_scan_duration_seconds_count").unwrap() >= 3);
    assert!(value(&answer, "numacast_publish_duration_seconds_count").unwrap() >= 1);
    let zone = r#"{zone="node-1",resource="cpu"}"#;
    assert_eq!(value(&answer, &format!("numacast_zone_capacity{zone}")), Some(8));
    assert_eq!(value(&answer, &format!("numacast_zone_available{zone}")), Some(7), "one is reserved");
    assert_eq!(value(&answer, "numacast_inventory_problems"), Some(1));
    // The kubelet still reports the CPUs that the broken file hides.
    assert_eq!(value(&answer, r#"numacast_findings{kind="unknown_cpus"}"#), Some(1));
    assert_eq!(value(&answer, r#"numacast_findings{kind="unpublished_node"}"#), Some(0));
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(value(&answer, &format!("numacast_build_info{{version=\"{version}\"}}")), Some(1));
    agent.abort();
}

async fn server() -> Server {
    Server::start(Endpoint::At(ANYWHERE), metrics(Arc::default()), None).await.unwrap().unwrap()
}

#[tokio::test]
async fn other_paths_and_verbs_are_refused_in_a_sentence() {
    let server = server().await;
    let answer = get(server.address(), "/").await;
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    assert!(answer.ends_with("\r\n\r\nthere is only /metrics\n"), "{answer}");
    let request = "POST /metrics HTTP/1.1\r\nHost: numacast\r\nContent-Length: 0\r\n\r\n";
    let answer = ask(server.address(), request).await;
    assert!(answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{answer}");
    assert!(answer.contains("allow: GET, HEAD\r\n"), "{answer}");
    let answer = ask(server.address(), "HEAD /metrics HTTP/1.1\r\nHost: numacast\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
}

/// Opens a connection from `source` and sends `sent`.
async fn connect(source: Ipv4Addr, to: SocketAddr, sent: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let mut stream = socket.connect(to).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    stream
}

#[tokio::test(start_paused = true)]
async fn a_thousand_idle_and_slow_connections_of_one_address_delay_no_probe() {
    let files = Resource::Nofile;
    setrlimit(files, Rlimit { current: Some(4096), ..getrlimit(files) }).unwrap();
    for attacker in [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST] {
        let server = server().await;
        let mut open = Vec::new();
        at_one_moment(async {
            let slow = ["", "G", "GET /metrics HTTP/1.1\r\nHost: numacast\r\n"];
            for sent in slow.iter().cycle().take(1000) {
                open.push(connect(attacker, server.address(), sent).await);
                if open.len() % 100 == 0 {
                    let answer = get(server.address(), "/metrics").await;
                    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_thousand_connections_that_come_before_any_is_accepted_keep_no_probe_out() {
    let files = Resource::Nofile;
    setrlimit(files, Rlimit { current: Some(4096), ..getrlimit(files) }).unwrap();
    let all = [Endpoint::Everywhere(0), Endpoint::At(ANYWHERE)];
    for endpoint in all {
        let server = Server::start(endpoint, metrics(Arc::default()), None).await.unwrap().unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.address().port()));
        // The server's task does not run until this one awaits.
        let connect = |_| std::net::TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        let _open: Vec<_> = (0..1000).map(connect).collect();
        let answer = get(address, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
}

/// Returns the response to a request that is sent after this many connections of `source` were opened.
async fn answer_after_connections(source: Ipv4Addr, count: usize) -> String {
    let files = Resource::Nofile;
    setrlimit(files, Rlimit { current: Some(4096), ..getrlimit(files) }).unwrap();
    let server = server().await;
    at_one_moment(async {
        let mut scraper = connect(Ipv4Addr::LOCALHOST, server.address(), "").await;
        let mut open = Vec::new();
        for _ in 0..count {
            open.push(connect(source, server.address(), "").await);
        }
        // The server may have closed it already.
        let _ = scraper.write_all(b"GET /metrics HTTP/1.1\r\nHost: numacast\r\n\r\n").await;
        let mut answer = String::new();
        let _ = scraper.read_to_string(&mut answer).await;
        answer
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn connections_close_none_of_another_address_and_hundreds_none_of_their_own() {
    for (source, count) in [(Ipv4Addr::new(127, 0, 0, 2), 600), (Ipv4Addr::LOCALHOST, 200)] {
        let answer = answer_after_connections(source, count).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{source}: {answer}");
    }
}

/// Makes this many requests from `source`, one after another, and returns how many are answered.
async fn answered(source: Ipv4Addr, to: SocketAddr, count: usize) -> usize {
    let mut answered = 0;
    for _ in 0..count {
        let mut stream = connect(source, to, "").await;
        // The server may have closed it already.
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: numacast\r\n\r\n").await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answered += usize::from(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    answered
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_address_are_limited_and_those_of_another_are_answered() {
    let server = server().await;
    let (attacker, kubelet) = (Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST);
    at_one_moment(async {
        assert_eq!(answered(attacker, server.address(), 200).await, 100);
        assert_eq!(answered(kubelet, server.address(), 8).await, 8);
    })
    .await;
    advance(Duration::from_secs(1)).await;
    let again = at_one_moment(answered(attacker, server.address(), 200)).await;
    assert_eq!(again, 50);
}

#[tokio::test(start_paused = true)]
async fn requests_of_all_addresses_are_limited_and_each_has_a_few() {
    let server = server().await;
    at_one_moment(async {
        let mut all = 0;
        for last in 2..10 {
            all += answered(Ipv4Addr::new(127, 0, 0, last), server.address(), 110).await;
        }
        assert_eq!(all, 400 + 8 * 8);
        assert_eq!(answered(Ipv4Addr::LOCALHOST, server.address(), 8).await, 8);
    })
    .await;
}

/// Counts how often it is encoded.
#[derive(Debug, Default)]
struct Counted(AtomicUsize);

impl Exposition for Counted {
    fn encode(&self) -> String {
        format!("{}\n", self.0.fetch_add(1, Ordering::SeqCst))
    }
}

#[tokio::test(start_paused = true)]
async fn metrics_are_encoded_at_most_ten_times_a_second() {
    let endpoints = Endpoints { metrics: Some(Arc::<Counted>::default()), health: None };
    let server = Server::start(Endpoint::At(ANYWHERE), endpoints, None).await.unwrap().unwrap();
    for round in 0..3 {
        at_one_moment(async {
            for _ in 0..5 {
                let answer = get(server.address(), "/metrics").await;
                assert!(answer.ends_with(&format!("\r\n\r\n{round}\n")), "{answer}");
            }
        })
        .await;
        advance(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_request_is_closed_after_two_seconds() {
    let server = server().await;
    for sent in ["", "GET /metrics HTTP/1.1\r\n"] {
        let mut silent = connect(Ipv4Addr::LOCALHOST, server.address(), sent).await;
        let start = Instant::now();
        let closed = silent.read(&mut [0; 512]).await;
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
        assert!(start.elapsed() < Duration::from_secs(3), "by the virtual clock: {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn a_long_header_is_refused() {
    let request = format!("GET /metrics HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(9000));
    let answer = ask(server().await.address(), &request).await;
    assert!(answer.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{answer}");
}

#[tokio::test]
async fn a_taken_port_is_one_sentence() {
    let taken = TcpListener::bind(ANYWHERE).await.unwrap();
    let address = taken.local_addr().unwrap();
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
async fn a_port_of_every_address_is_one_of_both_families() {
    let server =
        Server::start(Endpoint::Everywhere(0), metrics(Arc::default()), None).await.unwrap().unwrap();
    let port = server.address().port();
    for address in [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), (Ipv6Addr::LOCALHOST, port).into()] {
        // A kernel without IPv6 has one family only.
        if address.is_ipv6() && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).await.is_err() {
            continue;
        }
        let answer = get(address, "/metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{address}: {answer}");
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
        assert!(tries < 1_000, "it still listens");
        tokio::task::yield_now().await;
    }
    drop(open);
}
