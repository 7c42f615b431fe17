//! Which executor gets a run.
