//! What fuzz targets reach of this crate, and nobody else.

use hyper::HeaderMap;
use windfall_contract::connector::PayAnswer;

/// What an answer over HTTP means; `None` where nothing is certain.
pub fn answer(status: u16, headers: &HeaderMap, body: &[u8], trade_no: &str) -> Option<PayAnswer> {
    crate::answer::of_http(status, headers, body, trade_no).ok()
}
