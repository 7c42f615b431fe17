package io.github.windfallrewards.client;

import java.io.IOException;

/** A key file cannot be used. */
public final class KeyFileException extends IOException {
    private static final long serialVersionUID = 1;

    KeyFileException(String message) {
        super(message);
    }

    static KeyFileException damaged(String what) {
        return new KeyFileException("the key file is damaged or none (" + what + "); export it again");
    }
}
