package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.SendBonusFailure;
import io.grpc.Status;
import java.time.Duration;

/** A call was not answered with a result. Its {@link #kind()} says what to do next. */
public final class WindfallException extends RuntimeException {
    private static final long serialVersionUID = 1;
    /** The reason of a withdrawal's FAILED_PRECONDITION that is not about the balance. */
    private static final String USER_FROZEN = "user_frozen";

    private final Kind kind;
    private final Duration retryAfter;

    WindfallException(Kind kind, String message, long retryAfterMs) {
        super(kind + ": " + message);
        this.kind = kind;
        this.retryAfter = Duration.ofMillis(retryAfterMs);
    }

    /** What kind of error it is. */
    public Kind kind() {
        return kind;
    }

    /** The least wait before the same call is made again. */
    public Duration retryAfter() {
        return retryAfter;
    }

    /** Whether the same call may succeed later. */
    public boolean isWorthRetrying() {
        return kind == Kind.BUSY || kind == Kind.UNANSWERED || kind == Kind.NO_ROUTE;
    }

    /** What to do next. */
    public enum Kind {
        /** Mend the call. Nothing was done. */
        REFUSED,
        /** Mend the key, its roles, or the user's token. Nothing was done. */
        DENIED,
        /** There is no such thing. */
        NOT_FOUND,
        /** The live rules send this reward nowhere. Add a route, then call again. Nothing was taken. */
        NO_ROUTE,
        /** The server cannot do it now, and nothing was done. Call again after the wait at the earliest. */
        BUSY,
        /** The balance is too small for the withdrawal. Nothing was kept; the id may be used again. */
        TOO_LITTLE,
        /** Two operators have frozen the user. Nothing was kept; the id may be used again when they have thawed the user. */
        FROZEN,
        /** The withdrawal's id was used for another user, type or amount. Take another one. */
        TAKEN,
        /** Whether it was done is not known. Make the same call again, with the same order number or id. */
        UNANSWERED
    }

    static WindfallException unanswered(String message) {
        return new WindfallException(Kind.UNANSWERED, message, 0);
    }

    static WindfallException doesNotFit() {
        return unanswered("the answer does not fit the question");
    }

    static WindfallException ofCall(Failure failure) {
        return switch (failure.code()) {
            case UNAUTHENTICATED, PERMISSION_DENIED -> as(Kind.DENIED, failure);
            case NOT_FOUND -> as(Kind.NOT_FOUND, failure);
            case RESOURCE_EXHAUSTED -> as(Kind.BUSY, failure);
            case INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION, ALREADY_EXISTS, UNIMPLEMENTED ->
                    as(Kind.REFUSED, failure);
            default -> busyOrUnanswered(failure);
        };
    }

    /** A withdrawal that is refused for now may be held, so that nothing but its final answers is certain. */
    static WindfallException ofWithdrawal(Failure failure) {
        return switch (failure.code()) {
            case INVALID_ARGUMENT, OUT_OF_RANGE, NOT_FOUND, UNIMPLEMENTED -> as(Kind.REFUSED, failure);
            case UNAUTHENTICATED, PERMISSION_DENIED -> as(Kind.DENIED, failure);
            // Services of earlier releases name no reason, for a frozen user neither.
            case FAILED_PRECONDITION ->
                    as(USER_FROZEN.equals(failure.reason()) ? Kind.FROZEN : Kind.TOO_LITTLE, failure);
            case ALREADY_EXISTS -> as(Kind.TAKEN, failure);
            default -> as(Kind.UNANSWERED, failure);
        };
    }

    static WindfallException ofSend(Failure failure) {
        return switch (failure.code()) {
            case INVALID_ARGUMENT, OUT_OF_RANGE, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, UNAUTHENTICATED, UNIMPLEMENTED ->
                    as(Kind.REFUSED, failure);
            case FAILED_PRECONDITION -> as(Kind.NO_ROUTE, failure);
            case RESOURCE_EXHAUSTED -> as(Kind.BUSY, failure);
            default -> busyOrUnanswered(failure);
        };
    }

    /** What the failure of one request of an answered batch means for it: nothing was taken. */
    static WindfallException ofPart(SendBonusFailure said) {
        Status.Code code = Status.fromCodeValue(said.getCode()).getCode();
        Failure failure = new Failure(code, said.getMessage(), true, true, 0L, null);
        WindfallException error = ofSend(failure);
        if (said.getRetryable() == error.isWorthRetrying()) {
            return error;
        }
        // The gateway knows best, and a later one may know more.
        return as(said.getRetryable() ? Kind.BUSY : Kind.REFUSED, failure);
    }

    private static WindfallException as(Kind kind, Failure failure) {
        return new WindfallException(kind, failure.message(), failure.retryAfterMs() == null ? 0 : failure.retryAfterMs());
    }

    /** A hint is the server's word that nothing was done; without it the code may be anybody's, at any time. */
    private static WindfallException busyOrUnanswered(Failure failure) {
        return as(failure.retryAfterMs() == null ? Kind.UNANSWERED : Kind.BUSY, failure);
    }
}
