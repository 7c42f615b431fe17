//! End to end, crash and sabotage tests
