//! The bytes of an add in the queue. Numbers are big-endian.
//!
//! | bytes | what |
//! |---|---|
//! | 2 | `WT` |
//! | 1 | the version of this table: 1, or 2 where it is signed |
//! | 8 | the id of the store's queue |
//! | 8 | when the record was written, in Unix milliseconds |
//! | 8 | when the task is due, in Unix milliseconds |
//! | 1 + n | the tenant's name, behind its length |
//! | 1 + n | the target's name, behind its length |
//! | 1 + n | the caller's own key, behind its length |
//! | 4 + n | the payload, behind its length |
//! | 4 + 16 | in version 2 alone: the signature, which is the number of the key and a code over all bytes before and that number |
//! | 4 | the CRC32C of all bytes before it |
//!
//! The code says who wrote the add; the CRC tells a damaged record from one that somebody has changed.

use super::signatures::ADD_SIGNATURE_BYTES;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use windfall_contract::due::{DUE_MAX_MS, PAYLOAD_MAX_BYTES, TaskKey};

const MAGIC: [u8; 2] = *b"WT";
/// The version of adds that nobody has signed.
const UNSIGNED: u8 = 1;
/// The version of signed adds.
const SIGNED: u8 = 2;
const CHECKSUM_BYTES: usize = 4;
/// The bytes of a name at most, as in the options.
const NAME_MAX_BYTES: usize = 100;

/// An add as the queue carries it. It names tenant and target by their names: whoever writes it may not know the numbers by
/// which the store knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueuedAdd {
    /// The id of the queue of the store that it is for.
    pub store: u64,
    pub written_ms: u64,
    pub due_ms: u64,
    pub tenant: String,
    pub target: String,
    pub key: TaskKey,
    pub payload: Bytes,
}

/// The bytes are no add of a queue.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RecordFault {
    #[error("it is no add of a timer")]
    Foreign,
    #[error("it has version {0}, and this build reads up to {SIGNED}")]
    Newer(u8),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

impl QueuedAdd {
    /// Its bytes without a signature. Names that are too long cannot be read again; whoever calls this has checked them.
    pub fn encode(&self) -> Bytes {
        sealed(self.body(UNSIGNED))
    }

    /// Its bytes with a signature, which `sign` makes of what it covers.
    pub fn encode_signed<E>(
        &self,
        sign: impl FnOnce(&[u8]) -> Result<[u8; ADD_SIGNATURE_BYTES], E>,
    ) -> Result<Bytes, E> {
        let mut bytes = self.body(SIGNED);
        let signature = sign(&bytes)?;
        bytes.put_slice(&signature);
        Ok(sealed(bytes))
    }

    /// All bytes before the signature and the checksum.
    fn body(&self, version: u8) -> BytesMut {
        let names = self.tenant.len() + self.target.len() + self.key.as_bytes().len();
        let behind = ADD_SIGNATURE_BYTES + CHECKSUM_BYTES;
        let mut bytes = BytesMut::with_capacity(3 + 24 + 3 + names + 4 + self.payload.len() + behind);
        bytes.put_slice(&MAGIC);
        bytes.put_u8(version);
        bytes.put_u64(self.store);
        bytes.put_u64(self.written_ms);
        bytes.put_u64(self.due_ms);
        for name in [self.tenant.as_bytes(), self.target.as_bytes(), self.key.as_bytes()] {
            bytes.put_u8(u8::try_from(name.len()).unwrap_or(u8::MAX));
            bytes.put_slice(name);
        }
        bytes.put_u32(u32::try_from(self.payload.len()).unwrap_or(u32::MAX));
        bytes.put_slice(&self.payload);
        bytes
    }

    /// Reads an add, and checks what a caller's add is checked for. Who has signed it is [another question](signed_parts).
    pub fn decode(record: &Bytes) -> Result<Self, RecordFault> {
        use RecordFault::Damaged;
        if record.len() < MAGIC.len() + 1 || record[..2] != MAGIC {
            return Err(RecordFault::Foreign);
        }
        let signature = match record[2] {
            UNSIGNED => 0,
            SIGNED => ADD_SIGNATURE_BYTES,
            0 => return Err(RecordFault::Foreign),
            newer => return Err(RecordFault::Newer(newer)),
        };
        let body = record.len().checked_sub(CHECKSUM_BYTES).filter(|end| *end >= 27 + signature);
        let end = body.ok_or(Damaged("it is cut short"))?;
        let mut checksum = &record[end..];
        if checksum.get_u32() != crc32c::crc32c(&record[..end]) {
            return Err(Damaged("its checksum is wrong"));
        }
        let mut rest = record.slice(3..end - signature);
        let (store, written_ms, due_ms) = (rest.get_u64(), rest.get_u64(), rest.get_u64());
        let (tenant, target) = (name(&mut rest)?, name(&mut rest)?);
        let key = short(&mut rest)?;
        let key = TaskKey::new(&key).map_err(|_| Damaged("its key has no valid length"))?;
        if rest.len() < 4 {
            return Err(Damaged("it is cut short"));
        }
        let length = rest.get_u32();
        if u32::try_from(rest.len()) != Ok(length) {
            return Err(Damaged("its payload has another length than it says"));
        }
        if rest.len() > PAYLOAD_MAX_BYTES {
            return Err(Damaged("its payload is too long"));
        }
        if due_ms > DUE_MAX_MS {
            return Err(Damaged("it is due after the latest time that can be stored"));
        }
        Ok(Self { store, written_ms, due_ms, tenant, target, key, payload: rest })
    }
}

/// With its checksum behind it.
fn sealed(mut bytes: BytesMut) -> Bytes {
    let checksum = crc32c::crc32c(&bytes);
    bytes.put_u32(checksum);
    bytes.freeze()
}

/// What the signature of a record covers, and the signature; `None` where it has none.
pub(super) fn signed_parts(record: &[u8]) -> Option<(&[u8], &[u8; ADD_SIGNATURE_BYTES])> {
    let end = record.len().checked_sub(CHECKSUM_BYTES)?;
    let (add, signature) = record[..end].split_last_chunk::<ADD_SIGNATURE_BYTES>()?;
    (add.get(MAGIC.len()) == Some(&SIGNED)).then_some((add, signature))
}

/// Reads an add and writes it again, with the signature that it has; `None` where it is refused.
#[cfg(feature = "fuzzing")]
pub(crate) fn again(record: &Bytes) -> Option<Bytes> {
    let add = QueuedAdd::decode(record).ok()?;
    match signed_parts(record) {
        Some((_, signature)) => add.encode_signed(|_| Ok::<_, RecordFault>(*signature)).ok(),
        None => Some(add.encode()),
    }
}

/// Bytes behind their length.
fn short(rest: &mut Bytes) -> Result<Bytes, RecordFault> {
    let cut = || RecordFault::Damaged("it is cut short");
    let length = usize::from(*rest.first().ok_or_else(cut)?);
    if rest.len() < 1 + length {
        return Err(cut());
    }
    rest.advance(1);
    Ok(rest.split_to(length))
}

fn name(rest: &mut Bytes) -> Result<String, RecordFault> {
    let bytes = short(rest)?;
    match bytes.len() {
        1..=NAME_MAX_BYTES => {}
        _ => return Err(RecordFault::Damaged("a name has no valid length")),
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| RecordFault::Damaged("a name is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add() -> QueuedAdd {
        QueuedAdd {
            store: 0x0102_0304_0506_0708,
            written_ms: 1_800_000_000_000,
            due_ms: 1_800_000_060_000,
            tenant: "calls".into(),
            target: "hook".into(),
            key: TaskKey::new(b"call-7").unwrap(),
            payload: "hang up".into(),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A record that waits in a queue is read by the next version, too: these bytes never change.
    #[test]
    fn the_bytes_of_version_1() {
        let golden = "575401\
            0102030405060708\
            000001a3185c5000\
            000001a3185d3a60\
            0563616c6c73\
            04686f6f6b\
            0663616c6c2d37\
            0000000768616e67207570";
        let bytes = add().encode();
        let (body, checksum) = bytes.split_at(bytes.len() - 4);
        assert_eq!(hex(body), golden);
        assert_eq!(hex(checksum), "e454db2a");
        assert_eq!(QueuedAdd::decode(&bytes), Ok(add()));
    }

    /// The same add with a signature: these bytes never change either.
    #[test]
    fn the_bytes_of_version_2() {
        let signature: [u8; ADD_SIGNATURE_BYTES] = std::array::from_fn(|at| u8::try_from(at).unwrap());
        let unsigned = add().encode();
        let mut covered = unsigned[..unsigned.len() - 4].to_vec();
        covered[2] = 2;
        let bytes = add().encode_signed(|given| {
            assert_eq!(given, covered);
            Ok::<_, RecordFault>(signature)
        });
        let bytes = bytes.unwrap();
        let (body, checksum) = bytes.split_at(bytes.len() - 4);
        assert_eq!(body, [&covered[..], &signature].concat());
        assert_eq!(checksum, crc32c::crc32c(body).to_be_bytes());
        assert_eq!(QueuedAdd::decode(&bytes), Ok(add()));
        assert_eq!(signed_parts(&bytes), Some((&covered[..], &signature)));
        assert_eq!(signed_parts(&unsigned), None);
        assert!((0..40).all(|len| signed_parts(&bytes[..len]).is_none_or(|(add, _)| add.len() >= 3)));
    }

    #[test]
    fn the_largest_add_and_the_emptiest_one_are_read_as_they_were_written() {
        let largest = QueuedAdd {
            tenant: "t".repeat(100),
            target: "g".repeat(100),
            key: TaskKey::new(&[7; 200]).unwrap(),
            payload: vec![9; PAYLOAD_MAX_BYTES].into(),
            due_ms: DUE_MAX_MS,
            written_ms: u64::MAX,
            ..add()
        };
        assert_eq!(QueuedAdd::decode(&largest.encode()), Ok(largest));
        let emptiest = QueuedAdd { payload: Bytes::new(), due_ms: 0, ..add() };
        assert_eq!(QueuedAdd::decode(&emptiest.encode()), Ok(emptiest));
    }

    #[test]
    fn no_byte_can_be_changed_or_be_missing_without_being_noticed() {
        let signed = add().encode_signed(|_| Ok::<_, RecordFault>([7; ADD_SIGNATURE_BYTES])).unwrap();
        for bytes in [add().encode(), signed] {
            for len in 0..bytes.len() {
                assert!(QueuedAdd::decode(&bytes.slice(..len)).is_err(), "{len}");
            }
            for at in 0..bytes.len() {
                let mut changed = bytes.to_vec();
                changed[at] ^= 0x20;
                assert!(QueuedAdd::decode(&changed.into()).is_err(), "{at}");
            }
            assert!(QueuedAdd::decode(&[&bytes[..], &[0]].concat().into()).is_err());
        }
    }

    /// What is whole and still no add: whoever wrote it does not keep the rules.
    #[test]
    fn whole_records_are_checked_as_a_callers_adds_are() {
        let sealed = |mut bytes: Vec<u8>| {
            bytes.truncate(bytes.len() - 4);
            let checksum = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&checksum.to_be_bytes());
            Bytes::from(bytes)
        };
        let mut newer = add().encode().to_vec();
        newer[2] = 3;
        assert_eq!(QueuedAdd::decode(&sealed(newer)), Err(RecordFault::Newer(3)));
        // The end of what is in it is taken for a signature, and the rest does not fit.
        let mut cut = add().encode().to_vec();
        cut[2] = 2;
        assert!(matches!(QueuedAdd::decode(&sealed(cut)), Err(RecordFault::Damaged(_))));
        for wrong in [
            QueuedAdd { payload: vec![0; PAYLOAD_MAX_BYTES + 1].into(), ..add() },
            QueuedAdd { due_ms: DUE_MAX_MS + 1, ..add() },
            QueuedAdd { tenant: String::new(), ..add() },
            QueuedAdd { target: "g".repeat(101), ..add() },
        ] {
            let read = QueuedAdd::decode(&wrong.encode());
            assert!(matches!(read, Err(RecordFault::Damaged(_))), "{read:?}");
        }
        for foreign in ["", "W", "{\"json\": true}", "WT\0"] {
            assert_eq!(QueuedAdd::decode(&foreign.into()), Err(RecordFault::Foreign));
        }
    }
}
