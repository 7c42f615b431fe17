//! How much freed memory this process keeps from the system, where glibc allocates.
//!
//! glibc makes up to eight arenas a core, and each keeps what was freed in it: a hundred megabytes and more after a
//! rain. One arena a core is as fast here.
#![allow(unsafe_code, reason = "glibc has no safe call for it")]

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

/// Gives back what is free. It takes some milliseconds.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it takes nothing that is in use, and may be called at any time by any thread.
    unsafe {
        libc::malloc_trim(0)
    };
}
