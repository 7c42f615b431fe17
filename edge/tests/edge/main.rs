//! Who may call what, and how calls are served: one program, because each program of its own compiles and links the server
//! again. What measures the memory of a whole process stands beside it.

#![allow(clippy::unwrap_used)] // a test that cannot go on says so

mod callers;
#[path = "../fixture/mod.rs"]
mod fixture;
mod pages;
mod places;
mod serving;
mod tls;
mod users;
