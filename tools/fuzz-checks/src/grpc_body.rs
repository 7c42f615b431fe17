//! Bodies of calls of the edge, before they are parsed: the frame of gRPC, and how much becomes of them.

use prost::Message;
use serde_json::Value;
use windfall_edge::fuzzing::{grpc_fields, json_parts};
use windfall_proto::v1;

const PREFIX_BYTES: usize = 5;

/// A body, a message that is framed here, or JSON: a body is one whole message, and no more comes to be in memory than
/// was counted before.
pub fn body(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else { return };
    match mode % 3 {
        0 => grpc(rest),
        1 => grpc(&framed(rest)),
        _ => json(rest),
    }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
    [&[0][..], &length[..], message].concat()
}

fn grpc(body: &[u8]) {
    let Some(counted) = grpc_fields(body) else { return };
    let Some((prefix, message)) = body.split_first_chunk::<PREFIX_BYTES>() else {
        assert!(body.is_empty() && counted == 0, "{body:x?}");
        return;
    };
    let [_, length @ ..] = *prefix;
    assert_eq!(u32::from_be_bytes(length), u32::try_from(message.len()).unwrap_or(u32::MAX), "{body:x?}");
    let requests = |of: &v1::SendBonusBatchRequest| {
        of.requests.len() + of.requests.iter().map(|one| one.extension.len()).sum::<usize>()
    };
    let events = |of: &[v1::BonusEvent]| of.len() + of.iter().map(|one| one.extension.len()).sum::<usize>();
    one::<v1::SendBonusRequest>(message, counted, |of| of.extension.len());
    one::<v1::SendBonusBatchRequest>(message, counted, requests);
    one::<v1::GrantRequest>(message, counted, |of| {
        of.event.as_ref().map_or(0, |event| event.extension.len())
    });
    one::<v1::GrantBatchRequest>(message, counted, |of| events(&of.events));
    one::<v1::GrantAsyncRequest>(message, counted, |of| events(&of.events));
    one::<v1::VerifyTokensRequest>(message, counted, |of| of.tokens.len());
}

/// What is in memory of a message, even if its parser stops, was counted; and what our clients write passes.
fn one<T: Message + Default>(message: &[u8], counted: usize, size: impl Fn(&T) -> usize) {
    let mut read = T::default();
    let parsed = read.merge(message);
    assert!(size(&read) <= counted, "{} of {counted}: {message:x?}", size(&read));
    if parsed.is_ok() {
        let again = grpc_fields(&framed(&read.encode_to_vec()));
        assert!(again.is_some_and(|again| again >= size(&read)), "{again:?}: {message:x?}");
    }
}

/// JSON's values are counted exactly where each stands once.
fn json(body: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
    let parts = parts_of(&value);
    assert!(json_parts(body) >= parts, "{}", String::from_utf8_lossy(body));
    assert_eq!(json_parts(value.to_string().as_bytes()), parts, "{value}");
}

/// A comma or a bracket for each value in another one, and one for each that is empty.
fn parts_of(value: &Value) -> usize {
    match value {
        Value::Array(all) => all.len().max(1) + all.iter().map(parts_of).sum::<usize>(),
        Value::Object(all) => all.len().max(1) + all.values().map(parts_of).sum::<usize>(),
        _ => 0,
    }
}
