package io.github.windfallrewards.client;

/**
 * What was won.
 *
 * @param amount the amount in the type's smallest unit, 1 or more
 * @param description what the user reads; it may be empty
 */
public record Prize(long amount, String description) {}
