//! What a process takes of the machine's memory.

use std::fs;

/// Memory of a process from now on: Linux alone tells.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    before_bytes: u64,
}

impl Memory {
    /// The memory of this process. Its peak so far is reset, where the system can do so.
    ///
    /// # Panics
    /// If there is no such process.
    pub fn of(pid: u32) -> Self {
        let memory = Self { pid, before_bytes: read_bytes(pid, "VmRSS:") };
        memory.forget_peak();
        memory
    }

    /// Begins the next peak with what the process has now, where the system can do so.
    pub fn forget_peak(&self) {
        // Where that is not allowed the peak includes what was before, so a check is the stricter one.
        fs::write(format!("/proc/{}/clear_refs", self.pid), "5").ok();
    }

    /// How far its peak since then was above what it had.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn peak_bytes(&self) -> u64 {
        read_bytes(self.pid, "VmHWM:").saturating_sub(self.before_bytes)
    }

    /// How far it is above what it had.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn grown_bytes(&self) -> u64 {
        read_bytes(self.pid, "VmRSS:").saturating_sub(self.before_bytes)
    }
}

fn read_bytes(pid: u32, name: &str) -> u64 {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or_else(|| panic!("{path} has no {name}")) * 1024
}
