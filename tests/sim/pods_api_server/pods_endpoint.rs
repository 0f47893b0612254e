//! The kubelet's `/pods` endpoint over TLS.

use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::ca::Ca;

/// A server of `/pods`. It is stopped with the runtime.
pub(super) struct PodsEndpoint {
    ca: Ca,
    pub(super) port: u16,
    items: Arc<Mutex<Vec<Value>>>,
}

impl PodsEndpoint {
    pub(super) async fn start() -> Self {
        let ca = Ca::new().unwrap();
        let acceptor = ca.acceptor().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let items = Arc::<Mutex<Vec<Value>>>::default();
        let served = Arc::clone(&items);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, served) = (acceptor.clone(), Arc::clone(&served));
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else { return };
                    let mut request = vec![0; 4096];
                    while stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                        let body = json!({"kind": "PodList", "items": &*served.lock().unwrap()}).to_string();
                        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                        let _ = stream.write_all((head + &body).as_bytes()).await;
                    }
                });
            }
        });
        Self { ca, port, items }
    }

    pub(super) fn set(&self, items: Vec<Value>) {
        *self.items.lock().unwrap() = items;
    }

    /// Returns a kubeconfig that trusts this server. Its certificate authority is written into `dir`.
    pub(super) fn kubeconfig(&self, api_server: &str, dir: &Path) -> String {
        let authority = dir.join("ca.crt");
        std::fs::write(&authority, self.ca.pem()).unwrap();
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [
                {"name": "a", "cluster": {"server": api_server, "certificate-authority": authority}},
            ],
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "users": [{"name": "a", "user": {"token": "secret"}}],
        });
        file.to_string()
    }
}
