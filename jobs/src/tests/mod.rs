//! What becomes of runs when the store fails, waits or lies, when there is no room, and when two do it at once.

mod children;
mod clocks;
mod deciding;
mod delays;
mod heartbeats;
mod killing;
mod lateness;
mod leases;
mod lists;
mod looks;
mod outcomes;
mod overload;
mod quotas;
mod room;
mod strategies;
mod targets;
mod versions;
mod xxl;
