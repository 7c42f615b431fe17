//! Signs packs before they are handed to the fan-out: those that have just been sealed, those that an earlier process left,
//! those that other rules gave another queue, and those that waited for so long that the key is another one by now.

use crate::lane::ClosedPack;
use windfall_proto::record;
use windfall_signing::{SIGNATURE_BYTES, SignError, Signer};

/// A pack that cannot be signed now, as it was.
pub(crate) struct NotSigned {
    pub(crate) pack: ClosedPack,
    pub(crate) why: SignError,
}

/// Signs a pack for the queue of its lane, unless the primary key has signed it already.
pub(crate) fn sign(signer: &Signer, mut closed: ClosedPack) -> Result<ClosedPack, Box<NotSigned>> {
    if closed.signed_with.is_some() && closed.signed_with == signer.key() {
        return Ok(closed);
    }
    let (head, key) = match signed_head(signer, &closed) {
        Ok(signed) => signed,
        Err(why) => return Err(Box::new(NotSigned { pack: closed, why })),
    };
    closed.pack = closed.pack.with_head(&head);
    closed.signed_with = Some(key);
    Ok(closed)
}

fn signed_head(signer: &Signer, closed: &ClosedPack) -> Result<(Vec<u8>, u32), SignError> {
    let parts = record::signed_parts(closed.pack.payload())?;
    let signature = signer.sign(closed.lane.queue_tag, parts.head, parts.events)?;
    let mut head = Vec::with_capacity(parts.head.len() + record::signature_field_len(SIGNATURE_BYTES));
    head.extend_from_slice(parts.head);
    record::put_signature(&mut head, &signature.bytes);
    Ok((head, signature.key))
}
