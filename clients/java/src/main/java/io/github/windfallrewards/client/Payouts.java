package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.AcknowledgePayoutRequest;
import io.github.windfallrewards.v1.ListToPayOutReply;
import io.github.windfallrewards.v1.ListToPayOutRequest;
import io.github.windfallrewards.v1.PayoutsGrpc;

/**
 * Lists the withdrawals that a front end pays out elsewhere, and takes its acknowledgements. Every method throws a
 * {@link WindfallException} where it was not answered.
 */
public final class Payouts {
    private final Connection connection;

    /** Makes calls over a connection, which may be shared. */
    public Payouts(Connection connection) {
        this.connection = connection;
    }

    /** A page of what nobody has acknowledged. */
    public ListToPayOutReply list(ListToPayOutRequest request) {
        return connection.call(PayoutsGrpc.getListToPayOutMethod(), request, Repeat.SAFE, null);
    }

    /**
     * Says how a payout ended, and answers whether this was new. It is safe to repeat, and is repeated where no answer comes.
     */
    public boolean acknowledge(AcknowledgePayoutRequest request) {
        return connection.call(PayoutsGrpc.getAcknowledgePayoutMethod(), request, Repeat.SAFE, null).getIsNew();
    }
}
