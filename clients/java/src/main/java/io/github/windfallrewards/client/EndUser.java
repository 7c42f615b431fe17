package io.github.windfallrewards.client;

import io.grpc.Metadata;

/** The end user of a call. */
public final class EndUser {
    final Metadata.Key<String> header;
    final String value;

    private EndUser(String header, String value) {
        this.header = Metadata.Key.of(header, Metadata.ASCII_STRING_MARSHALLER);
        this.value = value;
    }

    /** A user by a signed assertion (JWT), as the user's front end holds it. */
    public static EndUser signed(String assertion) {
        return new EndUser("x-windfall-user-token", assertion);
    }

    /** A user by number. Servers believe it of callers that may name users. */
    public static EndUser named(long userId) {
        return new EndUser("x-windfall-user", Long.toString(userId));
    }

    /** Shows the user without the assertion. */
    @Override
    public String toString() {
        return header.name().equals("x-windfall-user") ? "user " + value : "a signed user";
    }
}
