//! The scripts, and how they are called.

use redis::{Cmd, Script};
use windfall_contract::task_queue::{FAR_REMOVAL_KEPT_MS, JobId, ONCE_KEPT_MS, TAKE_BYTES_MAX};

/// Begins a script that a server carries out though its memory is full.
const AT_THE_LIMIT: &str = "#!lua flags=allow-oom\n";

/// The scripts have this bound too.
const _: () = assert!(TAKE_BYTES_MAX == 4_194_304);
/// Marks are kept by the hour.
const _: () = assert!(ONCE_KEPT_MS == 3_600_000 && FAR_REMOVAL_KEPT_MS == 168 * ONCE_KEPT_MS);
const _: () = assert!(JobId::SEQUENCES == 549_755_813_888);

/// A script that the server knows by its hash once it has seen its text.
pub(super) struct Known {
    script: Script,
    text: String,
}

impl Known {
    /// One that a full server refuses.
    fn new(own: &str) -> Self {
        Self::of(format!("{}{own}", include_str!("scripts/common.lua")))
    }

    /// One that a full server carries out too: without it nothing would leave the server, so that it would stay full.
    fn at_the_limit(own: &str) -> Self {
        Self::of(format!("{AT_THE_LIMIT}{}{own}", include_str!("scripts/common.lua")))
    }

    fn of(text: String) -> Self {
        Self { script: Script::new(&text), text }
    }

    /// A call by hash, or by text for a server that has not seen it.
    pub(super) fn call(&self, by_text: bool, key: &[u8], arguments: &[Argument]) -> Cmd {
        let bytes: usize = arguments.iter().map(|argument| argument.len() + 8).sum();
        let mut command = Cmd::with_capacity(4 + arguments.len(), 192 + bytes);
        match by_text {
            true => command.arg("EVAL").arg(&self.text),
            false => command.arg("EVALSHA").arg(self.script.get_hash()),
        };
        command.arg(1).arg(key);
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
    const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Number(_) => 12,
        }
    }

    pub(super) fn text(text: &str) -> Self {
        Self::Bytes(bytes::Bytes::copy_from_slice(text.as_bytes()))
    }

    pub(super) fn bytes(bytes: &[u8]) -> Self {
        Self::Bytes(bytes::Bytes::copy_from_slice(bytes))
    }

    pub(super) fn count(count: usize) -> Self {
        Self::Number(count as u64)
    }
}

/// All scripts.
pub(super) struct Scripts {
    pub(super) publish: Known,
    pub(super) publish_once: Known,
    pub(super) publish_far: Known,
    pub(super) take: Known,
    pub(super) remove: Known,
    pub(super) remove_far: Known,
    pub(super) give_back: Known,
    pub(super) look: Known,
    pub(super) ready_for: Known,
    pub(super) get: Known,
    pub(super) peek: Known,
    pub(super) drop_ready: Known,
    pub(super) dead_head: Known,
    pub(super) end_dead: Known,
    pub(super) tend: Known,
    pub(super) sweep: Known,
    pub(super) count_call: Known,
    pub(super) limit_token: Known,
    pub(super) remove_token: Known,
}

impl Scripts {
    pub(super) fn new() -> Self {
        Self {
            publish: Known::new(include_str!("scripts/publish.lua")),
            publish_once: Known::new(include_str!("scripts/publish_once.lua")),
            publish_far: Known::new(include_str!("scripts/publish_far.lua")),
            take: Known::at_the_limit(include_str!("scripts/take.lua")),
            remove: Known::at_the_limit(include_str!("scripts/remove.lua")),
            // It leaves a mark, so that a full server has to refuse it.
            remove_far: Known::new(include_str!("scripts/remove.lua")),
            give_back: Known::at_the_limit(include_str!("scripts/give_back.lua")),
            look: Known::at_the_limit(include_str!("scripts/look.lua")),
            ready_for: Known::at_the_limit(include_str!("scripts/ready_for.lua")),
            get: Known::new(include_str!("scripts/get.lua")),
            peek: Known::at_the_limit(include_str!("scripts/peek.lua")),
            drop_ready: Known::at_the_limit(include_str!("scripts/drop_ready.lua")),
            dead_head: Known::at_the_limit(include_str!("scripts/dead_head.lua")),
            end_dead: Known::at_the_limit(include_str!("scripts/end_dead.lua")),
            tend: Known::at_the_limit(include_str!("scripts/tend.lua")),
            sweep: Known::at_the_limit(include_str!("scripts/sweep.lua")),
            count_call: Known::of(format!("{AT_THE_LIMIT}{}", include_str!("scripts/count_call.lua"))),
            limit_token: Known::at_the_limit(include_str!("scripts/limit_token.lua")),
            remove_token: Known::at_the_limit(include_str!("scripts/remove_token.lua")),
        }
    }
}
