//! Stores of jobs and their runs.
