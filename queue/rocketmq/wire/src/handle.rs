//! Mends the receipt handle that an extension returns.
//!
//! A proxy with the broker inside (`-pm local`, 5.5.0) answers an extension with a handle that names the first message
//! of the old delivery, while the broker has written the extension down under the message itself. Acknowledged with
//! that handle, all messages but the first come again, though the answer is OK. Proxies apart from their brokers answer
//! right. Source of the layout: `org.apache.rocketmq.common.consumer.ReceiptHandle`.

/// Where the broker looks for the delivery: the first offset of what was handed over with it.
const FIRST_OFFSET: usize = 0;
/// The message's own offset.
const OFFSET: usize = 7;

/// The handle with the message as the first, and only, one of its delivery. One of another layout stays as it is.
pub(crate) fn of_one(handle: String) -> String {
    let mut fields: Vec<&str> = handle.split(' ').collect();
    let offset = fields.get(OFFSET).copied().filter(|offset| offset.parse::<u64>().is_ok());
    match (offset, fields.get_mut(FIRST_OFFSET)) {
        (Some(offset), Some(first)) if first.parse::<u64>().is_ok() => *first = offset,
        _ => return handle,
    }
    fields.join(" ")
}

#[cfg(test)]
mod tests {
    use super::of_one;

    #[test]
    fn an_extension_is_of_one_message() {
        let answered = "40 1795273749209 30000 2 0 windfall 3 47 -1 8812";
        assert_eq!(of_one(answered.into()), "47 1795273749209 30000 2 0 windfall 3 47 -1 8812");
        let right = "47 1795273749209 30000 2 0 windfall 3 47 8812";
        assert_eq!(of_one(right.into()), right);
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        for handle in
            ["", "opaque", "40 1 2 3 0 windfall 3", "40 1 2 3 0 windfall 3 x", "x 1 2 3 0 windfall 3 47"]
        {
            assert_eq!(of_one(handle.into()), handle);
        }
    }
}
