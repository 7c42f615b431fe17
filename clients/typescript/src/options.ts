import { readFileSync } from "node:fs";
import { BlockList, isIP } from "node:net";
import { type ChannelCredentials, Client, credentials } from "@grpc/grpc-js";

/** The bytes of an answer at most: a full page of the archive. */
const ANSWER_MAX_BYTES = 16 << 20;
/** The first wait between two attempts, where the server says nothing; it doubles. */
export const WAIT_FIRST_MS = 25;
/** The longest wait between two attempts, whatever the server asks for: longer ones are the caller's decision. */
export const WAIT_MAX_MS = 1_000;

const KEEP_ALIVE_EVERY_MS = 15_000;
const KEEP_ALIVE_TIMEOUT_MS = 5_000;

/** How to reach a service. */
export interface Options {
  /**
   * 1 to 64 of `https://host:port` or `http://host:port`. Calls use them in turn, and each further attempt of a call uses
   * another one. Default: `http://127.0.0.1:8080`.
   */
  endpoints?: string[];
  /** This service's key. Either this, or a certificate. */
  bearerKey?: string;
  /** The file with the certificates (PEM) that servers are checked against; https needs it. */
  caFile?: string;
  /** The file with this service's certificate chain (PEM); it comes with `clientKeyFile`. */
  clientCertFile?: string;
  /** The file with its private key (PEM). */
  clientKeyFile?: string;
  /** The name in the servers' certificates, where it is not the endpoints' host. */
  serverName?: string;
  /** Sends the bearer key over http to other machines, too: where something else encrypts. Default: `false`. */
  keyInPlainText?: boolean;
  /** How long making a connection may take: 1 to 60,000; default 500. */
  connectTimeoutMs?: number;
  /**
   * How long one attempt may take, connecting included: 1 to 60,000; default 1,000. Choose rather more for withdrawals than the
   * wallet waits for a payout, or its answer comes with a later attempt.
   */
  attemptTimeoutMs?: number;
  /** The number of attempts of one call at most, the first included: 1 to 10; default 3. */
  attempts?: number;
}

/** An option is out of its range, or does not fit another, or a file that it names cannot be used. */
export class OptionError extends Error {
  override name = "OptionError";
}

export type Checked = Required<Omit<Options, "bearerKey" | "caFile" | "clientCertFile" | "clientKeyFile" | "serverName">> &
  Options;

export function check(options: Options): Checked {
  const checked: Checked = {
    keyInPlainText: false,
    connectTimeoutMs: 500,
    attemptTimeoutMs: 1_000,
    attempts: 3,
    ...options,
    endpoints: options.endpoints ?? ["http://127.0.0.1:8080"],
  };
  inRange("endpoints: their number", checked.endpoints.length, 1, 64);
  inRange("connectTimeoutMs", checked.connectTimeoutMs, 1, 60_000);
  inRange("attemptTimeoutMs", checked.attemptTimeoutMs, 1, 60_000);
  inRange("attempts", checked.attempts, 1, 10);
  if ((checked.clientCertFile === undefined) !== (checked.clientKeyFile === undefined)) {
    throw new OptionError("clientCertFile and clientKeyFile come together");
  }
  if (checked.bearerKey !== undefined && !isVisibleAscii(checked.bearerKey)) {
    // The key itself stays out of the error.
    throw new OptionError("bearerKey is not visible ASCII");
  }
  return checked;
}

/** A client for each endpoint, none of them connected yet. */
export function clients(options: Checked): Client[] {
  const secure = secureCredentials(options);
  return options.endpoints.map((endpoint) => {
    const { address, transport } = place(endpoint, options, secure);
    return new Client(address, transport, {
      "grpc.max_receive_message_length": ANSWER_MAX_BYTES,
      "grpc.keepalive_time_ms": KEEP_ALIVE_EVERY_MS,
      "grpc.keepalive_timeout_ms": KEEP_ALIVE_TIMEOUT_MS,
      "grpc.keepalive_permit_without_calls": 1,
      "grpc.initial_reconnect_backoff_ms": WAIT_FIRST_MS,
      "grpc.max_reconnect_backoff_ms": WAIT_MAX_MS,
      // Windfall's own rules say what is repeated, so that gRPC's must not.
      "grpc.enable_retries": 0,
      "grpc.service_config_disable_resolution": 1,
      "grpc.enable_http_proxy": 0,
      ...(options.serverName === undefined
        ? {}
        : { "grpc.ssl_target_name_override": options.serverName, "grpc.default_authority": options.serverName }),
    });
  });
}

export function isVisibleAscii(text: string): boolean {
  return /^[!-~]*$/.test(text);
}

function inRange(name: string, value: number, low: number, high: number): void {
  if (!Number.isInteger(value) || value < low || value > high) {
    throw new OptionError(`${name} is ${value}: ${low} to ${high} is allowed`);
  }
}

function place(endpoint: string, options: Checked, secure: ChannelCredentials | undefined) {
  const wrong = (why: string) => new OptionError(`endpoints: ${JSON.stringify(endpoint)} ${why}`);
  if (!/^https?:\/\//.test(endpoint) || !URL.canParse(endpoint)) {
    throw wrong("is neither https://host:port nor http://host:port");
  }
  const url = new URL(endpoint);
  if (url.protocol === "https:") {
    if (secure === undefined) {
      throw wrong("needs caFile");
    }
    return { address: `${url.hostname}:${url.port || 443}`, transport: secure };
  }
  if (options.clientCertFile !== undefined) {
    throw wrong("shows no certificate; use https, or leave clientCertFile out");
  }
  if (options.bearerKey !== undefined && !options.keyInPlainText && !isThisMachine(url.hostname)) {
    throw wrong("would carry the key in plain text; use https, or set keyInPlainText");
  }
  return { address: `${url.hostname}:${url.port || 80}`, transport: credentials.createInsecure() };
}

function secureCredentials(options: Checked): ChannelCredentials | undefined {
  if (options.caFile === undefined) {
    return undefined;
  }
  try {
    const read = (path: string | undefined) => (path === undefined ? null : readFileSync(path));
    return credentials.createSsl(read(options.caFile), read(options.clientKeyFile), read(options.clientCertFile));
  } catch (cause) {
    throw new OptionError("the files of certificates and keys cannot be used", { cause });
  }
}

function isThisMachine(host: string): boolean {
  const address = host.replace(/^\[|\]$/g, "");
  const loopback = new BlockList();
  loopback.addSubnet("127.0.0.0", 8, "ipv4");
  loopback.addAddress("::1", "ipv6");
  const family = isIP(address);
  return host === "localhost" || (family !== 0 && loopback.check(address, family === 4 ? "ipv4" : "ipv6"));
}
