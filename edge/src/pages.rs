//! Pages for people, on the port of the services. They authenticate by themselves: a browser has no bearer key.

use bytes::Bytes;
use std::net::SocketAddr;

/// Pages that a server answers beside its services, for the paths that [`Pages::takes`] names.
///
/// The server bounds the connection, the headers, the body and the time of a request, and checks nothing about who asks.
#[tonic::async_trait]
pub trait Pages: Send + Sync {
    /// Whether a path belongs to the pages. They come before the services, and cannot take the paths of health and
    /// metrics.
    fn takes(&self, path: &str) -> bool;

    /// The bytes of a request's body at most; the server's own limit holds as well.
    fn body_bytes_max(&self) -> usize;

    /// Answers a request. It may be dropped at any await.
    async fn answer(&self, request: http::Request<Bytes>, visitor: Visitor) -> http::Response<Bytes>;
}

/// Who asks for a page, as the connection says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visitor {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub is_tls: bool,
}
