//! An adaptive binary range coder: the better the bits before predict a bit, the less it costs.

/// For each value of the last eight bits the probability, out of 65,536, that the next bit is 0.
pub(super) struct Model {
    zero: [u16; 256],
    before: u8,
}

/// A probability moves by this part of its distance.
const RATE: u32 = 5;
/// A range below this is widened by a byte.
const NARROW: u32 = 1 << 24;
/// The bytes that another bit and the end of the code take at most.
const RESERVE_BYTES: usize = 10;

impl Default for Model {
    fn default() -> Self {
        Self { zero: [1 << 15; 256], before: 0 }
    }
}

impl Model {
    fn bound(&self, range: u32) -> u32 {
        (range >> 16) * u32::from(self.zero[usize::from(self.before)])
    }

    /// Adapts the probability to a coded bit.
    fn saw(&mut self, bit: bool) {
        let zero = &mut self.zero[usize::from(self.before)];
        if bit {
            *zero -= *zero >> RATE;
        } else {
            *zero += (u16::MAX - *zero) >> RATE;
        }
        self.before = (self.before << 1) | u8::from(bit);
    }
}

pub(super) struct Encoder {
    bytes: Vec<u8>,
    bytes_max: usize,
    low: u64,
    range: u32,
    /// A byte that a carry may still raise, and how many bytes of 255 follow it.
    held: u8,
    held_more: usize,
}

impl Encoder {
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { bytes: Vec::new(), bytes_max, low: 0, range: u32::MAX, held: 0, held_more: 0 }
    }

    /// Whether another bit surely fits.
    pub(super) fn has_room(&self) -> bool {
        self.bytes.len() + self.held_more + RESERVE_BYTES <= self.bytes_max
    }

    pub(super) fn put(&mut self, model: &mut Model, bit: bool) {
        let bound = model.bound(self.range);
        if bit {
            self.low += u64::from(bound);
            self.range -= bound;
        } else {
            self.range = bound;
        }
        model.saw(bit);
        while self.range < NARROW {
            self.range <<= 8;
            self.shift();
        }
    }

    /// The bytes, without the first, which is 0.
    pub(super) fn finish(mut self) -> Vec<u8> {
        for _ in 0..5 {
            self.shift();
        }
        self.bytes.remove(0);
        self.bytes
    }

    fn shift(&mut self) {
        let [_, _, _, carry, highest, ..] = self.low.to_be_bytes();
        if highest != 0xff || carry != 0 {
            self.bytes.push(self.held.wrapping_add(carry));
            for _ in 0..self.held_more {
                self.bytes.push(0xff_u8.wrapping_add(carry));
            }
            self.held_more = 0;
            self.held = highest;
        } else {
            self.held_more += 1;
        }
        self.low = (self.low & 0x00ff_ffff) << 8;
    }
}

pub(super) struct Decoder<'a> {
    bytes: &'a [u8],
    code: u32,
    range: u32,
}

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let mut new = Self { bytes, code: 0, range: u32::MAX };
        for _ in 0..4 {
            new.shift();
        }
        new
    }

    pub(super) fn take(&mut self, model: &mut Model) -> bool {
        let bound = model.bound(self.range);
        let bit = self.code >= bound;
        if bit {
            self.code -= bound;
            self.range -= bound;
        } else {
            self.range = bound;
        }
        model.saw(bit);
        while self.range < NARROW {
            self.range <<= 8;
            self.shift();
        }
        bit
    }

    fn shift(&mut self) {
        let (byte, rest) = self.bytes.split_first().map_or((0, self.bytes), |(byte, rest)| (*byte, rest));
        self.bytes = rest;
        self.code = (self.code << 8) | u32::from(byte);
    }
}
