//! The built page, embedded: `console/web` has its source, and `console/web/check` compares a fresh build with these files.

use crate::answer::{Answer, gzip, takes_gzip};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Path below the console, content type, and bytes.
const FILES: [(&str, &str, &[u8]); 5] = [
    ("", "text/html; charset=utf-8", include_bytes!("../assets/index.html")),
    ("app.js", "text/javascript; charset=utf-8", include_bytes!("../assets/app.js")),
    ("app.css", "text/css; charset=utf-8", include_bytes!("../assets/app.css")),
    ("icon.svg", "image/svg+xml", include_bytes!("../assets/icon.svg")),
    ("licences.txt", "text/plain; charset=utf-8", include_bytes!("../assets/licences.txt")),
];

/// The files of the page, compressed once.
pub(crate) struct Assets(BTreeMap<&'static str, Asset>);

struct Asset {
    kind: &'static str,
    plain: &'static [u8],
    packed: Option<Bytes>,
    tag: HeaderValue,
}

impl Assets {
    pub(crate) fn new() -> Self {
        let each = FILES.iter().map(|(path, kind, plain)| {
            let digest = URL_SAFE_NO_PAD.encode(&Sha256::digest(plain)[..12]);
            let tag =
                HeaderValue::from_str(&format!("\"{digest}\"")).unwrap_or(HeaderValue::from_static("\"\""));
            (*path, Asset { kind, plain, packed: gzip(plain), tag })
        });
        Self(each.collect())
    }

    /// The file at a path below the console; none where there is nothing.
    pub(crate) fn answer(&self, path: &str, asked: &HeaderMap) -> Option<Answer> {
        let asset = self.0.get(path)?;
        let mut answer = Answer::new(StatusCode::OK, asset.kind, Bytes::from_static(asset.plain));
        let known = asked.get(header::IF_NONE_MATCH).map(HeaderValue::as_bytes);
        if known == Some(asset.tag.as_bytes()) {
            answer = Answer::new(StatusCode::NOT_MODIFIED, asset.kind, Bytes::new());
        } else if let Some(packed) = asset.packed.as_ref().filter(|_| takes_gzip(asked)) {
            answer = Answer::new(StatusCode::OK, asset.kind, packed.clone())
                .with(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        Some(
            answer
                .with(header::ETAG, asset.tag.clone())
                .with(header::VARY, HeaderValue::from_static("accept-encoding"))
                // A new binary brings new files under the same names.
                .with(header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_runs_no_script_of_its_own() {
        let sum: usize = FILES.iter().map(|(_, _, bytes)| bytes.len()).sum();
        assert!(sum <= 180 << 10, "{sum} bytes");
        let page = String::from_utf8_lossy(FILES[0].2);
        // The content security policy forbids what is inline, and every other origin.
        for wrong in ["<script>", "<style", "style=", "onload=", "http:", "https:"] {
            assert!(!page.contains(wrong), "{wrong}: {page}");
        }
    }
}
