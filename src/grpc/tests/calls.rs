//! Tests of single calls.

use super::*;

#[tokio::test]
async fn a_tonic_client_is_served() {
    let server = start(Limits::default());
    let channel = Endpoint::from_shared(format!("unix://{}", server.path().display())).unwrap();
    let channel = channel.connect().await.unwrap();
    let mut client = v1::pod_resources_lister_client::PodResourcesListerClient::new(channel);
    let answer = client.list(v1::ListPodResourcesRequest {}).await.unwrap().into_inner();
    assert_eq!(answer.pod_resources[0].name, "p");
    let error = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await.unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (Code::Unimplemented, "unknown service v1.PodResourcesLister")
    );
    let finished = server.finished();
    assert_eq!(finished[0], (LIST.into(), Code::Ok, own_pid()));
    assert_eq!(finished[1].1, Code::Unimplemented);
}

#[tokio::test]
async fn codes_and_texts_are_those_of_grpc_go() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let unimplemented = |text| Response::status(Code::Unimplemented, text);
    assert_eq!(call(&mut client, "/t/Echo", b"x").await, Response::ok(b"x"));
    assert_eq!(call(&mut client, "/t/Echo", b"").await, Response::ok(b""));
    assert_eq!(call(&mut client, "/t/No", b"").await, unimplemented("unknown method No for service t"));
    assert_eq!(call(&mut client, "/a/b/C", b"").await, unimplemented("unknown service a/b"));
    assert_eq!(call(&mut client, "/List", b"").await, unimplemented("malformed method name: \"/List\""));
    let fail = Response::status(Code::NotFound, "no such pod: \u{fc}ber %\n");
    assert_eq!(call(&mut client, "/t/Fail", b"").await, fail);
    let half = Response { messages: vec![b"one".to_vec()], ..Response::status(Code::DataLoss, "gone") };
    assert_eq!(call(&mut client, "/t/Half", b"").await, half);

    let long = format!("/{}", "x/".repeat(300));
    assert!(call(&mut client, &long, b"").await.text.starts_with("malformed method name"));
    // The 128th byte is inside a character.
    let long = format!("/t/{}", "\u{fc}".repeat(400));
    assert!(call(&mut client, &long, b"").await.text.len() < 200);

    let cases = [
        (
            request(LIST).method(Method::GET),
            framed(b""),
            405,
            Code::Internal,
            "Received a HEADERS frame with :method \"GET\" which should be POST",
        ),
        (
            Request::post(format!("http://localhost{LIST}")),
            framed(b""),
            415,
            Code::InvalidArgument,
            "invalid gRPC request content-type \"\"",
        ),
        (
            Request::post(format!("http://localhost{LIST}")).header("content-type", "application/grpcx"),
            framed(b""),
            415,
            Code::InvalidArgument,
            "invalid gRPC request content-type \"application/grpcx\"",
        ),
        (
            request(LIST).header("grpc-timeout", "5x"),
            framed(b""),
            400,
            Code::Internal,
            "malformed grpc-timeout: transport: timeout unit is not recognized: \"5x\"",
        ),
        (
            request(LIST).header("grpc-encoding", "gzip"),
            framed(b""),
            200,
            Code::Unimplemented,
            "grpc: Decompressor is not installed for grpc-encoding \"gzip\"",
        ),
        (
            request(LIST),
            Bytes::from_static(b"\x01\0\0\0\0"),
            200,
            Code::Internal,
            "grpc: compressed flag set with identity or empty encoding",
        ),
        (
            request(LIST),
            Bytes::from_static(b"\x07\0\0\0\0"),
            200,
            Code::Internal,
            "grpc: received unexpected payload format 7",
        ),
        (
            request(LIST),
            Bytes::from_static(b"\0\0\x40\0\x01"),
            200,
            Code::ResourceExhausted,
            "grpc: received message larger than max (4194305 vs. 4194304)",
        ),
        (
            request(LIST),
            Bytes::new(),
            200,
            Code::Internal,
            "cardinality violation: received no request message from non-client-streaming RPC",
        ),
        (request(LIST), Bytes::from_static(b"\0\0\0\0\x09abc"), 200, Code::Internal, "unexpected EOF"),
    ];
    for (request, body, http, code, text) in cases {
        let answer = answer(send(&mut client, request.body(()).unwrap(), body)).await.unwrap();
        assert_eq!(answer, Response { http, ..Response::status(code, text) });
    }
    // The connection still works.
    let request = request("/t/Echo").header("grpc-encoding", "identity").header("grpc-timeout", "99999999H");
    let answer = answer(send(&mut client, request.body(()).unwrap(), framed(b"y"))).await.unwrap();
    assert_eq!(answer, Response::ok(b"y"));
}

#[test]
fn timeouts_are_parsed_as_specified() {
    use crate::grpc::call::parse_timeout;
    for (text, expected) in [
        ("1H", Some(Duration::from_secs(3600))),
        ("2M", Some(Duration::from_secs(120))),
        ("00000003S", Some(Duration::from_secs(3))),
        ("4m", Some(Duration::from_millis(4))),
        ("5u", Some(Duration::from_micros(5))),
        ("99999999n", Some(Duration::from_nanos(99_999_999))),
        ("", None),
        ("S", None),
        ("123456789S", None),
        ("-1S", None),
        ("+1S", None),
        ("1\u{fc}", None),
    ] {
        assert_eq!(parse_timeout(text).ok(), expected, "{text}");
    }
}

#[tokio::test]
async fn long_messages_are_accepted_but_not_many_at_once() {
    let server = start(Limits::default());
    let message = vec![5; 4 << 20];
    assert_eq!(server.call("/t/Echo", &message).await, Response::ok(&message));
    // Three that are begun and not finished: there is room for two.
    let mut client = server.client().await;
    let mut begun = Vec::new();
    for _ in 0..3 {
        let (response, mut body) = client.send_request(request("/t/Echo").body(()).unwrap(), false).unwrap();
        body.send_data(framed(&message).slice(..10_000), false).unwrap();
        begun.push((response, body));
        // Ensures that they are received in this order.
        assert_eq!(call(&mut client, "/t/Echo", b"x").await, Response::ok(b"x"));
    }
    let (third, _) = begun.pop().unwrap();
    let rejected = Response::status(Code::ResourceExhausted, "too many long messages at once");
    assert_eq!(answer(third).await.unwrap(), rejected);
    drop(begun);
    until(|| server.finished().iter().filter(|(_, code, _)| *code == Code::Cancelled).count() == 2).await;
    assert_eq!(server.call("/t/Echo", &message).await, Response::ok(&message));
}

#[tokio::test]
async fn data_after_the_message_is_discarded() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let mut trailers = hyper::HeaderMap::new();
    trailers.insert("x", "y".parse().unwrap());
    // Before the response, and while it is sent.
    for path in ["/t/Hang", "/t/Large"] {
        *server.state.large.lock().unwrap() = vec![1; 1 << 20].into();
        client = client.ready().await.unwrap();
        let (response, mut body) = client.send_request(request(path).body(()).unwrap(), false).unwrap();
        body.send_data(framed(b""), false).unwrap();
        if path == "/t/Hang" {
            until(|| server.hanging() == 1).await;
        }
        // More than the client's window allows.
        for _ in 0..20 {
            body.reserve_capacity(10_000);
            while body.capacity() < 10_000 {
                std::future::poll_fn(|cx| body.poll_capacity(cx)).await.unwrap().unwrap();
            }
            body.send_data(vec![0; 10_000].into(), false).unwrap();
        }
        body.send_trailers(trailers.clone()).unwrap();
        if path == "/t/Hang" {
            assert_eq!(call(&mut client, "/t/Echo", b"x").await, Response::ok(b"x"));
        } else {
            assert_eq!(answer(response).await.unwrap(), Response::ok(&vec![1; 1 << 20]));
        }
    }
    assert_eq!(server.violations(), []);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_ends_the_call() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let request = request("/t/Hang").header("grpc-timeout", "700m").body(()).unwrap();
    let begun = Instant::now();
    let answer = answer(send(&mut client, request, framed(b""))).await.unwrap();
    assert_eq!(answer, Response::status(Code::DeadlineExceeded, "context deadline exceeded"));
    assert!((700..800).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
    assert_eq!(server.hanging(), 0);
}

#[tokio::test]
async fn calls_end_when_their_client_leaves() {
    let server = start(Limits::default());
    let mut client = server.client().await;
    let body = || request("/t/Hang").body(()).unwrap();
    let (one, two) = (send(&mut client, body(), framed(b"")), send(&mut client, body(), framed(b"")));
    until(|| server.hanging() == 2).await;
    drop(one);
    until(|| server.hanging() == 1).await;
    drop((two, client));
    until(|| server.hanging() == 0).await;
    // The second one ended with its connection.
    until(|| server.finished().len() == 2).await;
    let cancelled = ("/t/Hang".to_owned(), Code::Cancelled, own_pid());
    assert_eq!(server.finished(), [cancelled.clone(), cancelled]);
    assert_eq!(server.violations(), []);
}
