//! What the scheduler promises where nothing is broken on purpose: one program, because each program of its own compiles and
//! links the scheduler again. Fail points hold for a whole process, so the tests that arm them stand beside it.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]

mod add_queue;
mod backfill;
mod catch_up;
mod dispatch;
mod embedded;
#[path = "../model/mod.rs"]
mod model;
