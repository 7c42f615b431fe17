import { once } from "node:events";
import { type AddressInfo, createServer, type Server as TcpServer, type Socket } from "node:net";
import {
  Metadata, type sendUnaryData, Server, ServerCredentials, type ServerUnaryCall, type ServiceDefinition, status,
  type UntypedServiceImplementation,
} from "@grpc/grpc-js";
import { ArchiveService } from "../src/generated/windfall/v1/grant.js";
import { TimersService } from "../src/generated/windfall/v1/schedule.js";
import { type SendBonusBatchReply, type SendBonusBatchRequest, SendService } from "../src/generated/windfall/v1/send.js";
import { TokensService } from "../src/generated/windfall/v1/token.js";
import { WalletService } from "../src/generated/windfall/v1/wallet.js";

/** How the fake ends a call: hangs, or answers a status, with a hint and a reason or without. */
export type End = "hangs" | { code: status; details: string; hint?: string; reason?: string };

export const said = (code: status): End => ({ code, details: "w" });
export const hinted = (code: status): End => ({ code, details: "later", hint: "7" });
export const because = (reason: string): End => ({ code: status.FAILED_PRECONDITION, details: "w", reason });

/** Answers every call with the next of these ends, and with the method's reply when there is none left. */
export class Fake {
  readonly heads: Metadata[] = [];
  calls = 0;
  batch: (request: SendBonusBatchRequest) => SendBonusBatchReply = () => ({ results: [] });
  endpoint = "";
  readonly #server = new Server();
  #ends: End[] = [];

  static async start(credentials = ServerCredentials.createInsecure()): Promise<Fake> {
    const fake = new Fake();
    for (const service of [SendService, TokensService, WalletService, TimersService, ArchiveService]) {
      const methods: UntypedServiceImplementation = {};
      for (const [name, method] of Object.entries(service)) {
        methods[name] = (call: ServerUnaryCall<unknown, unknown>, answer: sendUnaryData<unknown>) =>
          fake.#answer(method.path, call, answer);
      }
      fake.#server.addService(service as unknown as ServiceDefinition, methods);
    }
    const bind = new Promise<number>((resolve, reject) => {
      fake.#server.bindAsync("127.0.0.1:0", credentials, (error, port) =>
        error ? reject(error) : resolve(port),
      );
    });
    fake.endpoint = `http://127.0.0.1:${await bind}`;
    return fake;
  }

  say(...ends: End[]): void {
    this.#ends = ends;
    this.calls = 0;
    this.heads.length = 0;
  }

  stop(): void {
    this.#server.forceShutdown();
  }

  #answer(path: string, call: ServerUnaryCall<unknown, unknown>, answer: sendUnaryData<unknown>): void {
    this.calls++;
    this.heads.push(call.metadata);
    const end = this.#ends.shift();
    if (end === "hangs") {
      return;
    }
    if (end !== undefined) {
      const metadata = new Metadata();
      if (end.hint !== undefined) {
        metadata.set("retry-after-ms", end.hint);
      }
      if (end.reason !== undefined) {
        metadata.set("reason", end.reason);
      }
      answer({ ...end, metadata });
    } else if (path.endsWith("SendBonusBatch")) {
      answer(null, this.batch(call.request as SendBonusBatchRequest));
    } else {
      answer(null, { token: "token", id: "1", tokens: [], balances: [], flow: [], reply: undefined });
    }
  }
}

export async function listen(server: TcpServer): Promise<string> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** An address at which nobody listens. */
export async function nobody(): Promise<string> {
  const server = createServer();
  const endpoint = await listen(server);
  server.close();
  await once(server, "close");
  return endpoint;
}

/** HTTP/2 by hand: takes each call whole, and resets its stream for this reason. */
export function resetting(reason: number): TcpServer {
  const [data, settings] = [0, 4];
  return createServer((socket: Socket) => {
    let bytes = Buffer.alloc(0);
    let opened = false;
    socket.on("error", () => {});
    socket.on("data", (more: Buffer) => {
      bytes = Buffer.concat([bytes, more]);
      if (!opened && bytes.length >= 24) {
        opened = true;
        bytes = bytes.subarray(24);
        socket.write(Buffer.from([0, 0, 0, settings, 0, 0, 0, 0, 0]));
      }
      while (opened && bytes.length >= 9 && bytes.length >= 9 + bytes.readUIntBE(0, 3)) {
        const [kind, flags, id] = [bytes[3], bytes[4]!, bytes.subarray(5, 9)];
        if (kind === settings && (flags & 1) === 0) {
          socket.write(Buffer.from([0, 0, 0, settings, 1, 0, 0, 0, 0]));
        } else if (kind === data && (flags & 1) === 1) {
          socket.write(Buffer.from([0, 0, 4, 3, 0, ...id, 0, 0, 0, reason]));
        }
        bytes = bytes.subarray(9 + bytes.readUIntBE(0, 3));
      }
    });
  });
}
