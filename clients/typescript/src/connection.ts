import { type Client, connectivityState, Metadata, type ServiceError } from "@grpc/grpc-js";
import { setTimeout as sleep } from "node:timers/promises";
import { callError } from "./errors.js";
import { type Failure, failureOf, lastWord, leavesDoubt, mayHelp, neverSent, ownRefusal } from "./failure.js";
import { type Checked, check, clients, isVisibleAscii, type Options, WAIT_FIRST_MS, WAIT_MAX_MS } from "./options.js";
import type { EndUser } from "./user.js";

/** How often a call may be made: `safe` if made twice it does what it does once, `never` if each call counts. */
export type Repeat = "safe" | "never";

/** A method of a generated service, such as `TokensService.verifyTokens`. */
export interface Method<Q, R> {
  path: string;
  requestSerialize(message: Q): Buffer;
  responseDeserialize(bytes: Buffer): R;
}

export interface CallOptions {
  /** Ends the call. What became of it is not known then. */
  signal?: AbortSignal | undefined;
}

/** An answer, and whether an earlier attempt of the same call may have been done; or how the call failed. */
export type Answer<R> = { message: R; inDoubt: boolean } | { failure: Failure };

/** A way to a service. Clients may share it. */
export class Connection {
  readonly #options: Checked;
  readonly #clients: Client[];
  readonly #bearer: string | undefined;
  #next = 0;

  /**
   * Prepares channels, which connect when they are needed.
   * @throws OptionError
   */
  constructor(options: Options = {}) {
    this.#options = check(options);
    this.#clients = clients(this.#options);
    this.#bearer = options.bearerKey === undefined ? undefined : `Bearer ${options.bearerKey}`;
  }

  /** Ends the connection. Calls in flight end unanswered. */
  close(): void {
    for (const client of this.#clients) {
      client.close();
    }
  }

  /**
   * Makes a call of any service, and makes it again where that is safe and may help.
   * @throws WindfallError
   */
  async call<Q, R>(
    method: Method<Q, R>,
    request: Q,
    options: CallOptions & { repeat: Repeat; user?: EndUser | undefined },
  ): Promise<R> {
    const answer = await this.ask(method, request, options);
    if ("failure" in answer) {
      throw callError(answer.failure);
    }
    return answer.message;
  }

  /** The same, for those who read failures in another way, or answers that may say of a part that it was not done. */
  async ask<Q, R>(
    method: Method<Q, R>,
    request: Q,
    options: CallOptions & { repeat: Repeat; user?: EndUser | undefined },
  ): Promise<Answer<R>> {
    const { repeat, user, signal } = options;
    const attempts = repeat === "safe" ? this.#options.attempts : 1;
    const first = this.#next++;
    let inDoubt = false;
    let waitMs = WAIT_FIRST_MS;
    for (let attempt = 1; ; attempt++) {
      const client = this.#clients[(first + attempt - 1) % this.#clients.length] as Client;
      const answer = await this.#once(client, method, request, user, signal);
      if (!("failure" in answer)) {
        return { message: answer.message, inDoubt };
      }
      const { failure } = answer;
      if (attempt === attempts || !mayHelp(failure) || signal?.aborted) {
        return { failure: lastWord(failure, inDoubt) };
      }
      try {
        await sleep(jittered(Math.min(failure.retryAfterMs ?? waitMs, WAIT_MAX_MS)), undefined, { signal });
      } catch {
        return { failure: lastWord(failure, inDoubt) };
      }
      inDoubt ||= leavesDoubt(failure);
      waitMs = Math.min(waitMs * 2, WAIT_MAX_MS);
    }
  }

  async #once<Q, R>(
    client: Client,
    method: Method<Q, R>,
    request: Q,
    user: EndUser | undefined,
    signal: AbortSignal | undefined,
  ): Promise<{ message: R } | { failure: Failure }> {
    const metadata = new Metadata();
    if (this.#bearer !== undefined) {
      metadata.set("authorization", this.#bearer);
    }
    if (user !== undefined && "signed" in user) {
      if (!isVisibleAscii(user.signed)) {
        return { failure: ownRefusal("the user's token is not visible ASCII") };
      }
      metadata.set("x-windfall-user-token", user.signed);
    } else if (user !== undefined) {
      metadata.set("x-windfall-user", user.named.toString());
    }
    const deadline = Date.now() + this.#options.attemptTimeoutMs;
    if (signal?.aborted) {
      return { failure: neverSent("the caller ended the call before it was sent") };
    }
    if (!(await isConnected(client, Math.min(deadline, Date.now() + this.#options.connectTimeoutMs)))) {
      return { failure: neverSent("there is no connection to the server") };
    }
    return new Promise((resolve) => {
      const answered = (error: ServiceError | null, message?: R) => {
        signal?.removeEventListener("abort", cancel);
        resolve(error === null ? { message: message as R } : { failure: failureOf(error) });
      };
      const { path, requestSerialize, responseDeserialize } = method;
      // The server is told the deadline: it need not go on with what nobody waits for.
      const call = client.makeUnaryRequest(
        path, requestSerialize, responseDeserialize, request, metadata, { deadline }, answered,
      );
      const cancel = () => call.cancel();
      signal?.addEventListener("abort", cancel);
    });
  }
}

/** Waits until the channel is connected, or it failed to connect, or the deadline has come. */
function isConnected(client: Client, deadline: number): Promise<boolean> {
  const channel = client.getChannel();
  return new Promise((resolve) => {
    const look = () => {
      const state = channel.getConnectivityState(true);
      if (state === connectivityState.READY) {
        resolve(true);
      } else if (state === connectivityState.TRANSIENT_FAILURE || state === connectivityState.SHUTDOWN) {
        resolve(false);
      } else {
        channel.watchConnectivityState(state, deadline, (error) => (error ? resolve(false) : look()));
      }
    };
    look();
  });
}

/** A random wait between half of `waitMs` and all of it, so that callers that were refused together do not come back together. */
function jittered(waitMs: number): number {
  return (waitMs / 2) * (1 + Math.random());
}
