package io.github.windfallrewards.client;

/** The text is not a token of this user. It says no more, whatever the cause. */
public final class IllegalTokenException extends Exception {
    private static final long serialVersionUID = 1;

    IllegalTokenException() {
        super("illegal token");
    }
}
