package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.AddTimerReply;
import io.github.windfallrewards.v1.AddTimerRequest;
import io.github.windfallrewards.v1.AddTimerResult;
import io.github.windfallrewards.v1.AddTimersRequest;
import io.github.windfallrewards.v1.CancelTimerRequest;
import io.github.windfallrewards.v1.ChangeTimerReply;
import io.github.windfallrewards.v1.GetTimerReply;
import io.github.windfallrewards.v1.GetTimerRequest;
import io.github.windfallrewards.v1.NewTimer;
import io.github.windfallrewards.v1.Timer;
import io.github.windfallrewards.v1.TimersGrpc;
import io.github.windfallrewards.v1.UpdateTimerRequest;
import java.util.List;

/**
 * Adds, changes, cancels and shows timers. The scheduler's calls that are not here are made by {@link Connection#call}. Every
 * method throws a {@link WindfallException} where it was not answered.
 */
public final class Timers {
    private final Connection connection;

    /** Makes calls over a connection, which may be shared. */
    public Timers(Connection connection) {
        this.connection = connection;
    }

    /**
     * Adds a timer. Without a key it is never repeated by itself, since a call that was not answered may have stored it: made
     * again, there would be two.
     */
    public AddTimerReply add(AddTimerRequest request) {
        return connection.call(TimersGrpc.getAddMethod(), request, repeatOf(List.of(request.getTimer())), null);
    }

    /**
     * Adds up to 1,000 timers, with one answer for each, in order. It is repeated by itself only where each of them has a key.
     */
    public List<AddTimerResult> addBatch(AddTimersRequest request) {
        Repeat repeat = repeatOf(request.getTimersList());
        List<AddTimerResult> results =
                connection.call(TimersGrpc.getAddBatchMethod(), request, repeat, null).getResultsList();
        if (results.size() != request.getTimersCount()) {
            throw WindfallException.doesNotFit();
        }
        return results;
    }

    /** Gives a waiting timer another time, another payload, or both. */
    public ChangeTimerReply update(UpdateTimerRequest request) {
        return connection.call(TimersGrpc.getUpdateMethod(), request, Repeat.SAFE, null);
    }

    /** Cancels a waiting timer. */
    public ChangeTimerReply cancel(CancelTimerRequest request) {
        return connection.call(TimersGrpc.getCancelMethod(), request, Repeat.SAFE, null);
    }

    /** One timer; {@code NOT_FOUND} where it never was, or is over and gone. */
    public Timer get(GetTimerRequest request) {
        GetTimerReply reply = connection.call(TimersGrpc.getGetMethod(), request, Repeat.SAFE, null);
        if (!reply.hasTimer()) {
            throw WindfallException.doesNotFit();
        }
        return reply.getTimer();
    }

    /** Timers with keys may be added again, because the second one is not stored. */
    private static Repeat repeatOf(List<NewTimer> timers) {
        return timers.stream().noneMatch(timer -> timer.getKey().isEmpty()) ? Repeat.SAFE : Repeat.NEVER;
    }
}
