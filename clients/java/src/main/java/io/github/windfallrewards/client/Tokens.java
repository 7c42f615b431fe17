package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.ListTokensReply;
import io.github.windfallrewards.v1.ListTokensRequest;
import io.github.windfallrewards.v1.TokensGrpc;
import io.github.windfallrewards.v1.VerifiedToken;
import io.github.windfallrewards.v1.VerifyTokensRequest;
import java.util.List;

/** Lists and judges users' tokens. */
public final class Tokens {
    private final Connection connection;

    /** Makes calls over a connection, which may be shared. */
    public Tokens(Connection connection) {
        this.connection = connection;
    }

    /**
     * A page of the user's tokens.
     *
     * @throws WindfallException where it was not answered
     */
    public ListTokensReply list(EndUser user, ListTokensRequest request) {
        return connection.call(TokensGrpc.getListTokensMethod(), request, Repeat.SAFE, user);
    }

    /**
     * Judges at most 512 token texts: one answer per text, in order.
     *
     * @throws WindfallException where it was not answered
     */
    public List<VerifiedToken> verify(EndUser user, List<String> tokens) {
        VerifyTokensRequest request = VerifyTokensRequest.newBuilder().addAllTokens(tokens).build();
        List<VerifiedToken> judged =
                connection.call(TokensGrpc.getVerifyTokensMethod(), request, Repeat.SAFE, user).getTokensList();
        if (judged.size() != tokens.size()) {
            throw WindfallException.doesNotFit();
        }
        return judged;
    }
}
