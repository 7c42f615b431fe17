package io.github.windfallrewards.client;

import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;

/**
 * How an attempt failed.
 *
 * @param isOfServer whether a server said it. What breaks on the way gets a code from gRPC, too, at any time of the call: a
 *     connection that is reset "to calm down" is a RESOURCE_EXHAUSTED of a call that may be done
 * @param wasSent whether anything of the call may have reached a server
 * @param retryAfterMs the wait that a server asks for, or null. It also promises that nothing was done
 * @param reason the server's word for why, where the code has several reasons, or null
 */
record Failure(
        Status.Code code, String message, boolean isOfServer, boolean wasSent, Long retryAfterMs, String reason) {
    private static final Metadata.Key<String> RETRY_AFTER_MS =
            Metadata.Key.of("retry-after-ms", Metadata.ASCII_STRING_MARSHALLER);
    private static final Metadata.Key<String> REASON = Metadata.Key.of("reason", Metadata.ASCII_STRING_MARSHALLER);

    static Failure of(StatusRuntimeException error, Sighting seen) {
        String message = error.getStatus().getDescription() == null ? "" : error.getStatus().getDescription();
        // What this side refuses of an answer, for its size, begins like this.
        boolean isOfServer = seen.wasAnswered() && !message.startsWith("gRPC message exceeds");
        String hint = error.getTrailers() == null ? null : error.getTrailers().get(RETRY_AFTER_MS);
        boolean isHint = isOfServer && hint != null && hint.matches("[0-9]{1,9}");
        Long retryAfterMs = isHint ? Long.valueOf(hint) : null;
        String reason = isOfServer && error.getTrailers() != null ? error.getTrailers().get(REASON) : null;
        return new Failure(error.getStatus().getCode(), message, isOfServer, seen.wasSent(), retryAfterMs, reason);
    }

    /** There was no connection to send the call over. */
    static Failure neverSent(String message) {
        return new Failure(Status.Code.UNAVAILABLE, message, false, false, null, null);
    }

    /** Final: the call was not made. */
    static Failure ownRefusal(String message) {
        return new Failure(Status.Code.INVALID_ARGUMENT, message, true, false, null, null);
    }

    /** Whether another attempt may get another answer. */
    boolean mayHelp() {
        return switch (code) {
            case UNAVAILABLE, DEADLINE_EXCEEDED, CANCELLED, ABORTED, UNKNOWN, RESOURCE_EXHAUSTED -> true;
            // A connection that broke may have any code. The servers' refusals, and our own, are final.
            default -> !isOfServer;
        };
    }

    /** Whether the call may have been done all the same. */
    boolean leavesDoubt() {
        if (!isOfServer) {
            return wasSent;
        }
        return code != Status.Code.RESOURCE_EXHAUSTED && retryAfterMs == null;
    }

    /** What the caller is told, to whom a code means what a server means by it. */
    Failure lastWord(boolean inDoubt) {
        boolean isCertain = !mayHelp() || !leavesDoubt();
        if (inDoubt && isCertain) {
            return unanswered();
        }
        return isOfServer ? this : new Failure(Status.Code.UNAVAILABLE, message, false, wasSent, null, null);
    }

    /**
     * What the last attempt says is true of that attempt; an earlier one may have been done. Without a hint, which would be word
     * that nothing was. What is wrong in the call itself, every attempt was told.
     */
    private Failure unanswered() {
        if (code == Status.Code.INVALID_ARGUMENT || code == Status.Code.UNIMPLEMENTED) {
            return this;
        }
        String text = "an earlier attempt was not answered; the last one: " + code + ": " + message;
        return new Failure(Status.Code.UNAVAILABLE, text, false, true, null, null);
    }
}
