//! HTTP/1.1 by hand, on a connection of its own for each call.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A caller with a token.
#[derive(Clone)]
pub struct Wire {
    address: SocketAddr,
    token: String,
}

#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Wire {
    pub fn new(address: SocketAddr, token: &str) -> Self {
        Self { address, token: token.to_owned() }
    }

    pub async fn get(&self, path: &str) -> Reply {
        self.with_token("GET", path, "").await
    }

    pub async fn put(&self, path: &str, body: &str) -> Reply {
        self.with_token("PUT", path, body).await
    }

    pub async fn post(&self, path: &str, body: &str) -> Reply {
        self.with_token("POST", path, body).await
    }

    pub async fn delete(&self, path: &str) -> Reply {
        self.with_token("DELETE", path, "").await
    }

    async fn with_token(&self, method: &str, path: &str, body: &str) -> Reply {
        self.call(method, path, &[("x-token", &self.token)], body).await
    }

    pub async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        Self::end(self.begin(method, path, headers, body).await).await
    }

    /// Waits for the answer of a call that was sent.
    pub async fn end(mut stream: TcpStream) -> Reply {
        let mut bytes = Vec::new();
        // A reset after the answer is as good as a close.
        let _end = stream.read_to_end(&mut bytes).await;
        let text = String::from_utf8_lossy(&bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Reply { status, head: head.to_owned(), body: body.to_owned() }
    }

    /// Sends a call and does not wait for the answer.
    pub async fn begin(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n");
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
        // A server that refuses a body need not read it.
        let _sent = stream.write_all(text.as_bytes()).await;
        stream
    }
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn text(&self, field: &str) -> String {
        self.json()[field].as_str().unwrap_or_else(|| panic!("no {field}: {self:?}")).to_owned()
    }

    pub fn data(&self) -> Vec<u8> {
        data_of(&self.json())
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

pub fn data_of(job: &Value) -> Vec<u8> {
    let data = job["data"].as_str().unwrap_or_else(|| panic!("no data: {job}"));
    STANDARD.decode(data).unwrap()
}
