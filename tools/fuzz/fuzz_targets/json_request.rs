//! Requests over HTTP/JSON: any body is read or refused, and what is read is written and read again as the same, as
//! JSON and as protobuf. The first byte says which message it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use windfall_proto::v1;

fn one<T>(body: &[u8])
where
    T: Message + Default + Serialize + DeserializeOwned + PartialEq + Debug,
{
    if let Ok(message) = serde_json::from_slice::<T>(body) {
        let text = serde_json::to_vec(&message).expect("a message is written");
        assert_eq!(serde_json::from_slice::<T>(&text).expect("what we write we read"), message);
        assert_eq!(T::decode(message.encode_to_vec().as_slice()).expect("so is protobuf"), message);
    }
    // The same over gRPC, and from there to JSON, as a server answers over HTTP.
    if let Ok(message) = T::decode(body) {
        let text = serde_json::to_vec(&message);
        // An enum's number that has no name cannot be written: an error, never a panic.
        let Ok(text) = text else { return };
        assert_eq!(serde_json::from_slice::<T>(&text).expect("what we write we read"), message);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else { return };
    match kind % 27 {
        0 => one::<v1::SendBonusRequest>(body),
        1 => one::<v1::SendBonusBatchRequest>(body),
        2 => one::<v1::GrantRequest>(body),
        3 => one::<v1::GrantBatchRequest>(body),
        4 => one::<v1::GrantAsyncRequest>(body),
        5 => one::<v1::ListArchiveRequest>(body),
        6 => one::<v1::GetArchivedRequest>(body),
        7 => one::<v1::ReplayArchivedRequest>(body),
        8 => one::<v1::ListTokensRequest>(body),
        9 => one::<v1::VerifyTokensRequest>(body),
        10 => one::<v1::GetWalletRequest>(body),
        11 => one::<v1::WithdrawRequest>(body),
        12 => one::<v1::ListTokensReply>(body),
        13 => one::<v1::GetWalletReply>(body),
        14 => one::<v1::GrantBatchReply>(body),
        15 => one::<v1::ListArchiveReply>(body),
        16 => one::<v1::ListReservedRequest>(body),
        17 => one::<v1::ReleaseReservedRequest>(body),
        18 => one::<v1::ListHeldRequest>(body),
        19 => one::<v1::GetOrderReply>(body),
        20 => one::<v1::ListToPayOutRequest>(body),
        21 => one::<v1::AcknowledgePayoutRequest>(body),
        22 => one::<v1::GetStatementRequest>(body),
        23 => one::<v1::GetStatementReply>(body),
        24 => one::<v1::ListWithdrawalsRequest>(body),
        25 => one::<v1::ListWithdrawalsReply>(body),
        _ => one::<v1::ListReservedReply>(body),
    }
});
