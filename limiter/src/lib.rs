//! Global token bucket, limiters and fuses a bonus type, the fleet's share
