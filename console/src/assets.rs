//! The built page, embedded: `console/web` has its source, `npm run build` there makes these files, and `console/test` compares
//! them with a fresh build.

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
    use std::path::{Path, PathBuf};

    /// What the built page depends on, as `web/seal.js` has it.
    const SOURCES: [&str; 6] =
        ["index.html", "package-lock.json", "public", "src", "tsconfig.json", "vite.config.js"];

    fn add_files(path: &Path, files: &mut Vec<PathBuf>) {
        if path.is_dir() {
            for entry in std::fs::read_dir(path).unwrap() {
                add_files(&entry.unwrap().path(), files);
            }
        } else {
            files.push(path.to_owned());
        }
    }

    fn hash_of(folder: &Path, mut files: Vec<PathBuf>) -> String {
        files.sort_by_key(|file| file.to_str().unwrap().to_owned());
        let mut hash = Sha256::new();
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            let name = file.strip_prefix(folder).unwrap().to_str().unwrap();
            hash.update(format!("{name} {}\n", bytes.len()));
            hash.update(bytes);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Needs no Node.js: the build seals its files with the hashes of its source and of themselves.
    #[test]
    fn the_page_was_built_from_its_source() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let (web, built) = (own.join("web"), own.join("assets"));
        let (mut source, mut files) = (Vec::new(), Vec::new());
        SOURCES.iter().for_each(|one| add_files(&web.join(one), &mut source));
        add_files(&built, &mut files);
        files.retain(|file| !file.ends_with("seal.sha256"));
        let own = format!("source {}\nbuilt {}\n", hash_of(&web, source), hash_of(&built, files));
        let sealed = std::fs::read_to_string(built.join("seal.sha256")).unwrap();
        assert_eq!(sealed, own, "run npm run build in console/web, and commit console/assets with it");
    }

    #[test]
    fn the_page_is_small_and_runs_no_script_of_its_own() {
        let sum: usize = FILES.iter().map(|(_, _, bytes)| bytes.len()).sum();
        assert!(sum <= 240 << 10, "{sum} bytes");
        let page = String::from_utf8_lossy(FILES[0].2);
        // The content security policy forbids what is inline, and every other origin.
        for wrong in ["<script>", "<style", "style=", "onload=", "http:", "https:"] {
            assert!(!page.contains(wrong), "{wrong}: {page}");
        }
    }
}
