//! Calls of librdkafka for which rdkafka has no safe wrapper.
#![allow(unsafe_code, reason = "rdkafka has no safe calls for these")]

use super::finished::TopicId;
use rdkafka::TopicPartitionList;
use rdkafka::bindings as native;
use rdkafka::client::{Client, ClientContext};
use rdkafka::message::BorrowedMessage;
use std::ffi::CString;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

/// The leader epoch that a record was written under, where the broker tells it.
pub(super) fn leader_epoch(message: &BorrowedMessage<'_>) -> Option<u32> {
    // SAFETY: the message is borrowed, so the pointer is valid; the call only reads it.
    u32::try_from(unsafe { native::rd_kafka_message_leader_epoch(message.ptr()) }).ok()
}

/// The metadata of a place in a list, as bytes: others may have committed what is no text, which rdkafka's own call
/// panics at.
pub(super) fn metadata(list: &TopicPartitionList, topic: &str, partition: i32) -> Vec<u8> {
    let Ok(name) = CString::new(topic) else { return Vec::new() };
    // SAFETY: the list lives through the call; what is found belongs to it and is copied before the list may change;
    // pointer and size of the metadata are librdkafka's own.
    unsafe {
        let place = native::rd_kafka_topic_partition_list_find(list.ptr(), name.as_ptr(), partition);
        let Some(place) = place.as_ref() else { return Vec::new() };
        if place.metadata.is_null() || place.metadata_size == 0 {
            return Vec::new();
        }
        std::slice::from_raw_parts(place.metadata.cast::<u8>(), place.metadata_size).to_vec()
    }
}

/// Asks the cluster for a topic's id. `None` if it does not say in time.
pub(super) fn topic_id<C: ClientContext>(client: &Client<C>, topic: &str, wait: Duration) -> Option<TopicId> {
    let name = CString::new(topic).ok()?;
    let mut names = [name.as_ptr()];
    let wait_ms = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX);
    let client = client.native_ptr();
    // SAFETY: the client outlives this call, and each handle that is made here is destroyed here, after the last use of
    // what belongs to it. The queue is ours alone, so its only event is the answer to this request.
    unsafe {
        let topics = Handle::of(
            native::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), names.len()),
            native::rd_kafka_TopicCollection_destroy,
        )?;
        let options = Handle::of(
            native::rd_kafka_AdminOptions_new(
                client,
                native::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS,
            ),
            native::rd_kafka_AdminOptions_destroy,
        )?;
        native::rd_kafka_AdminOptions_set_request_timeout(options.0.as_ptr(), wait_ms, null_mut(), 0);
        let queue = Handle::of(native::rd_kafka_queue_new(client), native::rd_kafka_queue_destroy)?;
        native::rd_kafka_DescribeTopics(client, topics.0.as_ptr(), options.0.as_ptr(), queue.0.as_ptr());
        let event = Handle::of(
            native::rd_kafka_queue_poll(queue.0.as_ptr(), wait_ms.saturating_add(1_000)),
            native::rd_kafka_event_destroy,
        )?;
        let result = native::rd_kafka_event_DescribeTopics_result(event.0.as_ptr());
        if result.is_null() {
            return None;
        }
        let mut count = 0;
        let found = native::rd_kafka_DescribeTopics_result_topics(result, &raw mut count);
        if found.is_null() || count != 1 {
            return None;
        }
        let id = native::rd_kafka_TopicDescription_topic_id(*found);
        if id.is_null() {
            return None;
        }
        let high = native::rd_kafka_Uuid_most_significant_bits(id);
        let low = native::rd_kafka_Uuid_least_significant_bits(id);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&high.to_be_bytes());
        bytes[8..].copy_from_slice(&low.to_be_bytes());
        // A broker that is too old for ids, or a topic that is not there.
        (bytes != [0; 16]).then_some(bytes)
    }
}

/// Something of librdkafka's that is destroyed when it goes out of scope.
struct Handle<T>(NonNull<T>, unsafe extern "C" fn(*mut T));

impl<T> Handle<T> {
    fn of(made: *mut T, destroy: unsafe extern "C" fn(*mut T)) -> Option<Self> {
        NonNull::new(made).map(|made| Self(made, destroy))
    }
}

impl<T> Drop for Handle<T> {
    fn drop(&mut self) {
        // SAFETY: it was made by librdkafka, and nobody else destroys it.
        unsafe { self.1(self.0.as_ptr()) }
    }
}
