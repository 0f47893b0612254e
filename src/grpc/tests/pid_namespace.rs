//! Tests the server in its own PID namespace, as in a pod: its clients' processes have no PID there.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;

const PART: &str = "NUMACAST_TEST_PART";
const SOCKET: &str = "NUMACAST_TEST_SOCKET";

/// Not a test: the entry point of the processes started by the test below. Each prints that it is ready and
/// runs until its input ends.
#[tokio::test]
#[allow(clippy::print_stdout)] // reports readiness
async fn run_part() {
    let Ok(part) = std::env::var(PART) else { return };
    let path = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let (mut served, mut clients) = (None, Vec::new());
    match &*part {
        "serve" => {
            let socket = Socket { path, mode: 0o755, group: None };
            let service = Arc::new(TestService(Arc::new(State::default())));
            let metrics = ServerMetrics::register(&mut Registry::default(), "test");
            served = Some(Server::start(socket, Limits::default(), service, metrics).unwrap());
        }
        "attack" => {
            for _ in 0..520 {
                let Ok(mut client) = connected(&path).await else { continue };
                let answer = answer(send(&mut client, request("/t/No").body(()).unwrap(), framed(b""))).await;
                clients.push((client, answer.is_ok()));
            }
        }
        "ask" => {
            let mut client = connected(&path).await.unwrap();
            assert_eq!(call(&mut client, "/t/Echo", b"x").await, Response::ok(b"x"));
        }
        other => panic!("{other}"),
    }
    println!("\nready");
    let input = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    input.await.unwrap().unwrap();
    drop((served, clients));
}

async fn connected(path: &Path) -> Result<SendRequest<Bytes>, h2::Error> {
    let stream = UnixStream::connect(path).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection.map(drop));
    client.ready().await
}

/// A process of the test. It ends when its input is closed, at the latest when this is dropped.
struct Part(Child, BufReader<ChildStdout>);

impl Part {
    /// Starts a process, in its own PID namespace if `in_pod`, and waits until it is ready.
    fn start(part: &str, path: &Path, in_pod: bool) -> Self {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(if in_pod { Path::new("unshare") } else { &own });
        if in_pod {
            command.args(["--pid", "--fork", "--"]).arg(&own);
        }
        command.args(["--exact", "grpc::tests::pid_namespace::run_part", "--nocapture"]);
        command.env(PART, part).env(SOCKET, path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        assert!(output.by_ref().lines().map_while(Result::ok).any(|line| line == "ready"), "{part} failed");
        Self(child, output)
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        self.1.read_to_end(&mut Vec::new()).unwrap();
        assert!(self.0.wait().unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::print_stdout)] // reports why nothing was tested
async fn one_process_cannot_displace_the_others() {
    if !rustix::process::geteuid().is_root() {
        println!("a PID namespace requires root");
        return;
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("kubelet.sock");
    let server = Part::start("serve", &path, true);
    let mut first = connected(&path).await.unwrap();
    assert_eq!(call(&mut first, "/t/Echo", b"x").await, Response::ok(b"x"));
    let attack = Part::start("attack", &path, false);
    for _ in 0..5 {
        Part::start("ask", &path, false).end();
    }
    assert_eq!(call(&mut first, "/t/Echo", b"y").await, Response::ok(b"y"), "it was idle all the time");
    attack.end();
    server.end();
}
