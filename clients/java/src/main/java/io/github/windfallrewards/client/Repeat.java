package io.github.windfallrewards.client;

/** How often a call may be made. */
public enum Repeat {
    /** It may be repeated: made twice, it does what it does once. */
    SAFE,
    /** It must not be repeated: each call counts. */
    NEVER
}
