//! A process that forks: its child must not go on counting the nonces that its parent goes on counting, too.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::fs::File;
use std::io::{Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;
use windfall_token::{KeyRing, TokenFields};

const NOW_MS: u64 = 1_800_000_000_000;

/// The 24 bytes behind version and key number.
fn nonce(text: &str) -> [u8; 24] {
    URL_SAFE_NO_PAD.decode(text).unwrap()[5..29].try_into().unwrap()
}

#[test]
#[allow(unsafe_code, reason = "what runs between fork and exec is the child that this is about")]
fn a_forked_child_never_repeats_a_nonce() {
    let ring = KeyRing::ephemeral().unwrap();
    let minter = ring.minter("acme").unwrap();
    let mint = {
        let minter = minter.clone();
        move |trade_no: &str| {
            minter.mint(&TokenFields { trade_no, user_id: 42, ..Default::default() }, NOW_MS).unwrap()
        }
    };
    let first = nonce(&mint("before the fork"));
    let second = nonce(&mint("before the fork, too"));
    assert_eq!(first[..12], second[..12], "one draw serves many tokens, or this test shows nothing");

    let (mut from_child, to_parent) = pipe().unwrap();
    let child_mint = mint.clone();
    let mut command = Command::new("true");
    let mut out = Some(File::from(std::os::fd::OwnedFd::from(to_parent)));
    // SAFETY: between fork and exec the child runs on the one thread that it has. It allocates, which the C library allows
    // after a fork, and takes no lock that another thread of the parent may hold.
    unsafe {
        command.pre_exec(move || {
            let mut out = out.take().ok_or(std::io::ErrorKind::NotFound)?;
            writeln!(out, "{}", child_mint("in the child"))?;
            writeln!(out, "{}", child_mint("in the child, too"))
        });
    }
    assert!(command.status().unwrap().success());
    drop(command);
    let mut told = String::new();
    from_child.read_to_string(&mut told).unwrap();
    let childs: Vec<[u8; 24]> = told.lines().map(nonce).collect();
    let third = nonce(&mint("after the fork"));

    assert_eq!(childs.len(), 2);
    assert_eq!(third[..12], first[..12], "the parent goes on as it was");
    assert_ne!(childs[0][..12], first[..12], "the child went on with its parent's key and count");
    assert_eq!(childs[0][..12], childs[1][..12], "it draws once");
    for text in told.lines() {
        assert_eq!(ring.open(text.as_bytes(), "acme", 42).unwrap().user_id, 42);
    }
}
