package io.github.windfallrewards.client;

import io.github.windfallrewards.v1.Bonus;
import io.github.windfallrewards.v1.SendBonusRequest;
import io.github.windfallrewards.v1.User;
import java.util.regex.Pattern;

/**
 * What all scenes share: fixed names, and order numbers of round, user and a number within the round. The round is the rain's
 * round, the day of the draw or the show; the number is the user's packet in that round, the draw of that day or the burst of
 * that show. Both are 0 to 4,294,967,295.
 */
public abstract sealed class Scene permits RedPacketRain, CardDraw, Fireworks {
    private static final Pattern NAME = Pattern.compile("[!-~]{1,64}");
    private static final Pattern BONUS_TYPE = Pattern.compile("[a-z0-9_.-]{1,32}");
    private static final int TRADE_NO_MAX_BYTES = 128;
    private static final long U32_MAX = (1L << 32) - 1;

    private final Sender sender;
    private final String name;
    private final String activity;
    private final String bonusType;
    private final String prefix;

    Scene(Sender sender, String name, String shortName, String activity, String bonusType) {
        require(NAME.matcher(activity).matches(), "the activity is not 1 to 64 visible ASCII characters");
        require(BONUS_TYPE.matcher(bonusType).matches(), "the bonus type is not 1 to 32 of a-z, 0-9, _, - and .");
        this.sender = sender;
        this.name = name;
        this.activity = activity;
        this.bonusType = bonusType;
        prefix = activity + "/" + shortName + "/";
        // No call can fail for the length of its number if the longest one fits.
        require(tradeNo(U32_MAX, Long.MAX_VALUE, U32_MAX).length() <= TRADE_NO_MAX_BYTES,
                "with this activity and bonus type an order number can have more than 128 bytes");
    }

    /**
     * The order number of a user's reward, in the format of docs/order-numbers.md: a number that differs from it pays twice.
     *
     * @throws IllegalArgumentException where an argument is out of its range
     */
    public final String tradeNo(long round, long userId, long number) {
        require(round >= 0 && round <= U32_MAX, "the round is not 0 to 4,294,967,295");
        require(userId >= 1, "the user id is below 1");
        require(number >= 0 && number <= U32_MAX, "the number is not 0 to 4,294,967,295");
        // By hand: what a formatter writes depends on the machine's language.
        String digits = Long.toString(round);
        return prefix + "0".repeat(10 - digits.length()) + digits + "/" + bonusType + "/" + userId + "/" + number;
    }

    /**
     * What {@link #send} sends, for those who send many rewards in one call.
     *
     * @throws IllegalArgumentException where an argument is out of its range
     */
    public final SendBonusRequest request(long round, User user, long number, Prize prize) {
        Bonus bonus = Bonus.newBuilder()
                .setType(bonusType)
                .setAmount(prize.amount())
                .setDescription(prize.description())
                .build();
        return SendBonusRequest.newBuilder()
                .setTradeNo(tradeNo(round, user.getUserId(), number))
                .setUser(user)
                .setActivity(activity)
                .setScene(name)
                .setBonus(bonus)
                .build();
    }

    /**
     * Sends a user's reward and returns the token. The same arguments again are the same order, which credits once.
     *
     * @throws IllegalArgumentException where an argument is out of its range
     * @throws WindfallException where it was not answered with a token
     */
    public final String send(long round, User user, long number, Prize prize) {
        return sender.sendBonus(request(round, user, number, prize)).getToken();
    }

    private static void require(boolean holds, String otherwise) {
        if (!holds) {
            throw new IllegalArgumentException(otherwise);
        }
    }
}
