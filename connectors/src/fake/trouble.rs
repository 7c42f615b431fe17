//! Bad answers. The payment has been made before each of them.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body_util::{Full, StreamBody};
use hyper::Response;
use hyper::body::Frame;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use tonic::body::Body;

/// What becomes of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// A page for people, with status 200 and the right content type.
    Nonsense,
    /// A redirect to another address.
    Redirect,
    /// A body that never ends: it goes on and on.
    Endless,
    /// A body that begins well, and then nothing more comes.
    Stalled,
    /// No answer: the connection is cut.
    Cut,
    /// A head of many megabytes.
    HugeHead,
    /// The right body under another content type.
    WrongType,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Nonsense,
        Self::Redirect,
        Self::Endless,
        Self::Stalled,
        Self::Cut,
        Self::HugeHead,
        Self::WrongType,
    ];

    /// Its name, as flags have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nonsense => "nonsense",
            Self::Redirect => "redirect",
            Self::Endless => "endless",
            Self::Stalled => "stalled",
            Self::Cut => "cut",
            Self::HugeHead => "huge-head",
            Self::WrongType => "wrong-type",
        }
    }

    /// The bad answer in place of the good one; `None` cuts the connection.
    pub(crate) fn apply(self, good: Response<Body>) -> Option<Response<Body>> {
        let (mut head, body) = good.into_parts();
        head.headers.remove("content-length");
        let body = match self {
            Self::Nonsense => Body::new(Full::from("<html><body>It works!</body></html>")),
            Self::Redirect => {
                head.status = hyper::StatusCode::TEMPORARY_REDIRECT;
                let location = "http://169.254.169.254/latest/meta-data/";
                head.headers.insert("location", hyper::header::HeaderValue::from_static(location));
                Body::empty()
            }
            Self::Endless => {
                let zeros = Bytes::from_static(&[b' '; 4_096]);
                Body::new(StreamBody::new(stream::repeat_with(move || frame(zeros.clone()))))
            }
            Self::Stalled => {
                let begin = stream::iter([frame(Bytes::from_static(b"{\"outcome\":"))]);
                Body::new(StreamBody::new(begin.chain(stream::pending())))
            }
            Self::Cut => return None,
            Self::HugeHead => {
                let value = hyper::header::HeaderValue::from_static(LONG);
                for _ in 0..1_024 {
                    head.headers.append("x-more", value.clone());
                }
                body
            }
            Self::WrongType => {
                let text = hyper::header::HeaderValue::from_static("text/plain");
                head.headers.insert("content-type", text);
                body
            }
        };
        Some(Response::from_parts(head, body))
    }
}

/// 8 KiB of a header's value.
const LONG: &str = {
    const BYTES: [u8; 8_192] = [b'x'; 8_192];
    match std::str::from_utf8(&BYTES) {
        Ok(text) => text,
        Err(_) => "",
    }
};

fn frame(bytes: Bytes) -> Result<Frame<Bytes>, Infallible> {
    Ok(Frame::data(bytes))
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// There is no such trouble.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is none of nonsense, redirect, endless, stalled, cut, huge-head and wrong-type")]
pub struct UnknownTrouble(pub String);

impl FromStr for Trouble {
    type Err = UnknownTrouble;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|one| one.name() == text);
        named.ok_or_else(|| UnknownTrouble(text.to_owned()))
    }
}
