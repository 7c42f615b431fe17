//! The scripts, and how they are called.

use redis::{Cmd, Script};

/// A script that the server knows by its hash once it has seen its text.
pub(super) struct Known {
    script: Script,
    text: String,
}

impl Known {
    /// One that reads, or that a full server refuses.
    fn new(own: &str) -> Self {
        Self::with_head("", own)
    }

    /// One that a full server carries out too: without it nothing would fire and nothing would be dropped, so that the
    /// server would stay full.
    fn at_the_limit(own: &str) -> Self {
        Self::with_head("#!lua flags=allow-oom\n", own)
    }

    fn with_head(head: &str, own: &str) -> Self {
        let text = format!("{head}{}{own}", include_str!("scripts/common.lua"));
        Self { script: Script::new(&text), text }
    }

    /// A call by hash, or by text for a server that has not seen it.
    pub(super) fn call(&self, by_text: bool, keys: &[Vec<u8>], arguments: &[Argument]) -> Cmd {
        let bytes: usize = arguments.iter().map(|argument| argument.len() + 8).sum();
        let mut command = Cmd::with_capacity(3 + keys.len() + arguments.len(), 128 + 40 * keys.len() + bytes);
        match by_text {
            true => command.arg("EVAL").arg(&self.text),
            false => command.arg("EVALSHA").arg(self.script.get_hash()),
        };
        command.arg(keys.len());
        for key in keys {
            command.arg(key.as_slice());
        }
        for argument in arguments {
            match argument {
                Argument::Bytes(bytes) => command.arg(&bytes[..]),
                Argument::Number(number) => command.arg(*number),
            };
        }
        command
    }
}

/// An argument of a script.
pub(super) enum Argument {
    Bytes(bytes::Bytes),
    Number(u64),
}

impl Argument {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(_) => 12,
        }
    }
}

impl From<&'static str> for Argument {
    fn from(text: &'static str) -> Self {
        Self::Bytes(bytes::Bytes::from_static(text.as_bytes()))
    }
}

macro_rules! of_bytes {
    ($($kind:ty),*) => { $(impl From<$kind> for Argument {
        fn from(bytes: $kind) -> Self {
            Self::Bytes(bytes.into())
        }
    })* };
}
of_bytes!(bytes::Bytes, Vec<u8>, String);

macro_rules! of_numbers {
    ($($kind:ty),*) => { $(impl From<$kind> for Argument {
        fn from(number: $kind) -> Self {
            Self::Number(number.into())
        }
    })* };
}
of_numbers!(u16, u32, u64);

/// All scripts.
pub(super) struct Scripts {
    pub(super) add: Known,
    pub(super) add_once: Known,
    pub(super) cancel_once: Known,
    pub(super) load: Known,
    pub(super) change: Known,
    /// The same for batches that cancel and move nothing.
    pub(super) cancel: Known,
    pub(super) get: Known,
    pub(super) list: Known,
    pub(super) name: Known,
    pub(super) keep_names: Known,
    pub(super) beat: Known,
    pub(super) acquire: Known,
    pub(super) renew: Known,
    pub(super) release: Known,
    pub(super) advance: Known,
    pub(super) state: Known,
    pub(super) finish: Known,
    pub(super) drop: Known,
    pub(super) end_dead: Known,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            add: Known::new(include_str!("scripts/add.lua")),
            add_once: Known::new(include_str!("scripts/add_once.lua")),
            cancel_once: Known::at_the_limit(include_str!("scripts/cancel_once.lua")),
            load: Known::new(include_str!("scripts/load.lua")),
            change: Known::new(include_str!("scripts/change.lua")),
            cancel: Known::at_the_limit(include_str!("scripts/change.lua")),
            get: Known::new(include_str!("scripts/get.lua")),
            list: Known::new(include_str!("scripts/list.lua")),
            name: Known::new(include_str!("scripts/name.lua")),
            keep_names: Known::at_the_limit(include_str!("scripts/keep_names.lua")),
            beat: Known::at_the_limit(include_str!("scripts/beat.lua")),
            acquire: Known::at_the_limit(include_str!("scripts/acquire.lua")),
            renew: Known::at_the_limit(include_str!("scripts/renew.lua")),
            release: Known::at_the_limit(include_str!("scripts/release.lua")),
            advance: Known::at_the_limit(include_str!("scripts/advance.lua")),
            state: Known::new(include_str!("scripts/state.lua")),
            finish: Known::at_the_limit(include_str!("scripts/finish.lua")),
            drop: Known::at_the_limit(include_str!("scripts/drop.lua")),
            end_dead: Known::at_the_limit(include_str!("scripts/end_dead.lua")),
        }
    }
}
