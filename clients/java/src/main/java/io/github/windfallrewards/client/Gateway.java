package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.SendBonusBatchReply;
import io.github.windfallrewards.v1.SendBonusBatchRequest;
import io.github.windfallrewards.v1.SendBonusReply;
import io.github.windfallrewards.v1.SendBonusRequest;
import io.github.windfallrewards.v1.SendBonusResult;
import io.github.windfallrewards.v1.SendGrpc;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/** Sends rewards. */
public final class Gateway implements Sender {
    /** The number of requests in one call at most. */
    private static final int BATCH_MAX = 512;
    /** The bytes of one call at most: well below what a server takes by default. */
    private static final int BATCH_MAX_BYTES = 1 << 20;

    private final Connection connection;

    /**
     * What became of one request of a batch: one of the two is null.
     *
     * @param token the user's proof
     * @param error why there is none
     */
    public record Sent(String token, WindfallException error) {}

    /** Makes calls over a connection, which may be shared. */
    public Gateway(Connection connection) {
        this.connection = connection;
    }

    /**
     * Sends a reward. When it returns, the event is on its way and survives the death of the process that took it; the reply holds
     * the user's token. The same request again is harmless: the order number credits once.
     *
     * @throws WindfallException where it was not answered with a token
     */
    @Override
    public SendBonusReply sendBonus(SendBonusRequest request) {
        Connection.Answer<SendBonusReply> answer = connection.ask(SendGrpc.getSendBonusMethod(), request, Repeat.SAFE, null);
        if (answer.failure() != null) {
            throw WindfallException.ofSend(answer.failure());
        }
        return answer.message();
    }

    /** Sends several rewards and returns one answer for each request, in order. Some may be taken and others not. */
    public List<Sent> sendBonusBatch(List<SendBonusRequest> requests) {
        List<Sent> answers = new ArrayList<>(requests.size());
        int begin = 0;
        long bytes = 0;
        for (int at = 0; at < requests.size(); at++) {
            int size = requests.get(at).getSerializedSize();
            if (at - begin == BATCH_MAX || at > begin && bytes + size > BATCH_MAX_BYTES) {
                answers.addAll(sendPart(requests.subList(begin, at)));
                begin = at;
                bytes = 0;
            }
            bytes += size;
        }
        if (begin < requests.size()) {
            answers.addAll(sendPart(requests.subList(begin, requests.size())));
        }
        return answers;
    }

    private List<Sent> sendPart(List<SendBonusRequest> requests) {
        SendBonusBatchRequest batch = SendBonusBatchRequest.newBuilder().addAllRequests(requests).build();
        Connection.Answer<SendBonusBatchReply> answer =
                connection.ask(SendGrpc.getSendBonusBatchMethod(), batch, Repeat.SAFE, null);
        if (answer.failure() != null) {
            return Collections.nCopies(requests.size(), new Sent(null, WindfallException.ofSend(answer.failure())));
        }
        List<SendBonusResult> results = answer.message().getResultsList();
        if (results.size() != requests.size()) {
            return Collections.nCopies(requests.size(), new Sent(null, WindfallException.doesNotFit()));
        }
        return results.stream().map(result -> read(result, answer.inDoubt())).toList();
    }

    private static Sent read(SendBonusResult result, boolean inDoubt) {
        return switch (result.getResultCase()) {
            case TOKEN -> new Sent(result.getToken(), null);
            case FAILURE -> new Sent(null, failure(result, inDoubt));
            case RESULT_NOT_SET ->
                    new Sent(null, WindfallException.unanswered("the gateway's answer says neither yes nor no"));
        };
    }

    private static WindfallException failure(SendBonusResult result, boolean inDoubt) {
        // An earlier attempt was told the same where the request itself is wrong; else it may have been taken.
        if (inDoubt && result.getFailure().getCode() != Status.Code.INVALID_ARGUMENT.value()) {
            return WindfallException.unanswered(
                    "an earlier attempt was not answered; the last one: " + result.getFailure().getMessage());
        }
        return WindfallException.ofPart(result.getFailure());
    }
}
