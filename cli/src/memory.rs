//! Where this process takes its memory from, and how much of what was freed it keeps from the system.
//!
//! Rust's allocations go to mimalloc: most of them are freed by another thread than the one that made them, where glibc's threads
//! wait for each other. It asks for no huge pages (its feature `no_thp`): with them the peak of a demo was 380 MB in place of 270.
//!
//! What C libraries allocate (librdkafka, SQLite, zstd) still goes to glibc. That makes up to eight arenas a core, and each keeps
//! what was freed in it. One arena a core is as fast here.
#![allow(unsafe_code, reason = "glibc has no safe call for it")]

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// One arena a core, and two at least. To be called before the first thread starts.
pub fn bound_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let arenas = libc::c_int::try_from(cores.max(2)).unwrap_or(libc::c_int::MAX);
        // SAFETY: it sets a number, and no other thread runs yet. If it is refused, memory use is what it was.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
}

/// Gives back what is free of the C libraries' memory. It takes some milliseconds. mimalloc gives back by itself.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes nothing that is in use, and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0)
    };
}
