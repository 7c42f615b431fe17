package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.GetWalletReply;
import io.github.windfallrewards.v1.GetWalletRequest;
import io.github.windfallrewards.v1.WalletGrpc;
import io.github.windfallrewards.v1.WithdrawReply;
import io.github.windfallrewards.v1.WithdrawRequest;

/** Shows users' wallets and withdraws. */
public final class Wallet {
    private final Connection connection;

    /** Makes calls over a connection, which may be shared. */
    public Wallet(Connection connection) {
        this.connection = connection;
    }

    /**
     * Balances and a page of movements, the newest first, with the pending rewards on the first page. For the page behind it, give
     * the reply's {@code flow_next} as {@code flow_after}; where that is empty, the history has ended.
     *
     * @throws WindfallException where it was not answered
     */
    public GetWalletReply get(EndUser user, GetWalletRequest request) {
        return connection.call(WalletGrpc.getGetWalletMethod(), request, Repeat.SAFE, user);
    }

    /**
     * Takes money off the balance, once for the withdrawal's id: it is safe to repeat, and is repeated where no answer comes. Of its errors
     * {@code UNANSWERED} alone leaves open what became of the withdrawal.
     *
     * @throws WindfallException where it was not answered with an outcome
     */
    public WithdrawReply withdraw(EndUser user, WithdrawRequest request) {
        Connection.Answer<WithdrawReply> answer =
                connection.ask(WalletGrpc.getWithdrawMethod(), request, Repeat.SAFE, user);
        if (answer.failure() != null) {
            throw WindfallException.ofWithdrawal(answer.failure());
        }
        return answer.message();
    }
}
