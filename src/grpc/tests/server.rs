//! Tests of the server as a whole: stopping, and its socket file.

use super::*;

#[tokio::test]
async fn a_stopping_server_finishes_running_calls() {
    let server = start(Limits::default());
    let large = vec![3; 1 << 20];
    *server.state.large.lock().unwrap() = large.clone().into();
    let mut client = server.client().await;
    let response = send(&mut client, request("/t/Large").body(()).unwrap(), framed(b""));
    let (path, dir) = (server.path(), server.dir);
    // Its headers have arrived, so it was begun.
    let response = response.await.unwrap();
    let stopping = tokio::spawn(server.server.stop());
    let mut body = response.into_body();
    let mut bytes = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk.unwrap();
        body.flow_control().release_capacity(chunk.len()).unwrap();
        bytes += chunk.len();
    }
    assert_eq!(bytes, large.len() + 5);
    assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "0");
    stopping.await.unwrap();
    let error = UnixStream::connect(&path).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "the file stays");
    drop(dir);
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_does_not_wait_forever() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let response = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
    until(|| server.hanging() == 1).await;
    let begun = Instant::now();
    server.server.stop().await;
    assert!((1..=3).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert!(response.await.is_err());
    assert_eq!(server.state.hanging.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn thousands_of_canceled_calls_leave_nothing_behind() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    for _ in 0..2000 {
        client = client.ready().await.unwrap();
        let response = send(&mut client, request("/t/Hang").body(()).unwrap(), framed(b""));
        drop(response);
    }
    // Each call was either begun or rejected with ENHANCE_YOUR_CALM.
    let answer = server.call("/t/Echo", b"x").await;
    assert_eq!(answer, Response::ok(b"x"));
    until(|| server.hanging() == 0).await;
}

#[tokio::test]
async fn a_removed_socket_file_is_restored() {
    let server = start(Limits::default());
    std::fs::remove_file(server.path()).unwrap();
    until(|| server.path().exists()).await;
    assert_eq!(server.call("/t/Echo", b"x").await, Response::ok(b"x"));
}

#[tokio::test]
async fn the_server_knows_whether_it_is_serving() {
    let server = start(Limits::default());
    assert!(server.server.is_serving());
    std::fs::remove_file(server.path()).unwrap();
    let other = std::os::unix::net::UnixListener::bind(server.path()).unwrap();
    until(|| !server.server.is_serving()).await;
    drop(other);
    std::fs::remove_file(server.path()).unwrap();
    until(|| server.server.is_serving()).await;
    assert_eq!(server.call("/t/Echo", b"x").await, Response::ok(b"x"));
}
