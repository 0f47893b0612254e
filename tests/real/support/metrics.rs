//! Reads metrics in the Prometheus text format.

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Returns the metrics that are served at an address, such as `127.0.0.1:40123`.
pub(crate) async fn scrape(address: &str) -> Result<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response.split_once("\r\n\r\n").context("no HTTP response")?.1.to_owned())
}

/// Returns the sum of a metric over the series whose labels contain all of `labels`; `None` if no series matches.
pub(crate) fn sum(text: &str, metric: &str, labels: &[&str]) -> Result<Option<f64>> {
    let mut sum = None;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((name, value)) = line.rsplit_once(' ') else { continue };
        let family = name.split('{').next().unwrap_or_default();
        if family == metric && labels.iter().all(|label| name.contains(label)) {
            *sum.get_or_insert(0.0) += value.parse::<f64>()?;
        }
    }
    Ok(sum)
}
