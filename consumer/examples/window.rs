//! Measures what a record costs in the window, in time and in memory:
//! `cargo run --release -p windfall-consumer --example window`.
#![allow(clippy::cast_precision_loss)]
#![allow(unsafe_code, reason = "an allocator that counts can be made in no other way")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use windfall_consumer::window::{Ticket, Window};

const IN_FLIGHT: u64 = 100_000;
const ROUNDS: u64 = 100;

/// Counts the heap bytes in use.
struct Counting;
static HEAP_BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP_BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HEAP_BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static HEAP: Counting = Counting;

fn main() {
    let mut window = Window::new(1, 0);
    let mut ring: Vec<Option<Ticket>> = (0..IN_FLIGHT).map(|_| None).collect();
    let before = HEAP_BYTES.load(Ordering::Relaxed);
    for (offset, place) in (0..).zip(&mut ring) {
        *place = window.deliver(offset).ok();
    }
    let bytes = HEAP_BYTES.load(Ordering::Relaxed) - before;
    println!("memory at {IN_FLIGHT} in flight: {:.2} bits a record", bytes as f64 * 8.0 / IN_FLIGHT as f64);

    let began = Instant::now();
    let mut offset = IN_FLIGHT;
    for _ in 0..ROUNDS {
        for place in &mut ring {
            let ticket = window.deliver(black_box(offset)).ok();
            if let Some(oldest) = std::mem::replace(place, ticket) {
                oldest.finish();
            }
            offset += 1;
        }
        black_box(window.advance());
    }
    let ns = began.elapsed().as_nanos() as f64 / (ROUNDS * IN_FLIGHT) as f64;
    println!("deliver + finish + commit every {IN_FLIGHT}: {ns:.1} ns a record");
    assert_eq!(window.in_flight(), IN_FLIGHT);
}
