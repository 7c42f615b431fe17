//! How many entries a page of a list has.

use tonic::Status;

const PAGE_DEFAULT: u32 = 100;
const PAGE_MAX: u32 = 1_000;

/// The number of entries in a page.
pub(super) fn page_of(page_size: u32) -> Result<u32, Status> {
    match page_size {
        0 => Ok(PAGE_DEFAULT),
        1..=PAGE_MAX => Ok(page_size),
        _ => Err(Status::invalid_argument(format!("page_size is {page_size}; it must be 0 to {PAGE_MAX}"))),
    }
}
