//! The scripts, and how they are called.

use bytes::Bytes;
use redis::{Cmd, Script};
use windfall_contract::entries::ANSWER_MAX_BYTES;

/// The scripts have this bound too.
const _: () = assert!(ANSWER_MAX_BYTES == 4_194_304);

/// A script that the server knows by its hash once it has seen its text.
pub(super) struct Known {
    script: Script,
    text: String,
}

impl Known {
    /// One that a full server refuses where it makes anything larger.
    fn new(own: &str) -> Self {
        Self::with_head("local FULL = false\n", own)
    }

    /// One that a full server carries out; what it must not do there, it has to know itself.
    fn at_the_limit(own: &str) -> Self {
        Self::with_head("#!lua flags=allow-oom\nlocal FULL = true\n", own)
    }

    fn with_head(head: &str, own: &str) -> Self {
        let text = format!("{head}{}{own}", include_str!("scripts/common.lua"));
        Self { script: Script::new(&text), text }
    }

    /// A call by hash, or by text for a server that has not seen it.
    pub(super) fn call(&self, by_text: bool, key: &[u8], arguments: &[Bytes]) -> Cmd {
        let bytes: usize = arguments.iter().map(|argument| argument.len() + 8).sum();
        let mut command = Cmd::with_capacity(4 + arguments.len(), 192 + bytes);
        match by_text {
            true => command.arg("EVAL").arg(&self.text),
            false => command.arg("EVALSHA").arg(self.script.get_hash()),
        };
        command.arg(1).arg(key);
        for argument in arguments {
            command.arg(&argument[..]);
        }
        command
    }
}

/// All scripts.
pub(super) struct Scripts {
    pub(super) apply: Known,
    pub(super) apply_when_full: Known,
    pub(super) scan: Known,
    pub(super) woken: Known,
    pub(super) numbers: Known,
    pub(super) rights: Known,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            apply: Known::new(include_str!("scripts/apply.lua")),
            apply_when_full: Known::at_the_limit(include_str!("scripts/apply.lua")),
            scan: Known::new(include_str!("scripts/scan.lua")),
            woken: Known::new(include_str!("scripts/woken.lua")),
            numbers: Known::new(include_str!("scripts/numbers.lua")),
            rights: Known::new(include_str!("scripts/rights.lua")),
        }
    }
}
