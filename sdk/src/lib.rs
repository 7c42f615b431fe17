//! What an activity service links: typed helpers, tokens, fan-out
