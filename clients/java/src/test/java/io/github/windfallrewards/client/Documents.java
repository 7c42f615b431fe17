package io.github.windfallrewards.client;

import com.google.gson.JsonElement;
import com.google.gson.JsonParser;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The vectors of the repository's documentation. */
final class Documents {
    private Documents() {}

    static JsonElement read(String name) throws IOException {
        return JsonParser.parseString(Files.readString(Path.of("../../docs", name)));
    }
}
