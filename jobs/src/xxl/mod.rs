//! The HTTP protocol that XXL-JOB's executors speak.
