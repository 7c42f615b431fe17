// Calls of the console's own server, which calls the services with the key of who has signed in.

export interface Who {
  name: string;
  tenant: string;
  roles: string[];
  csrf: string;
  rules: "none" | "read" | "change";
  version: string;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

let csrf = "";
let whenSignedOut: () => void = () => undefined;

export function onSignedOut(then: () => void): void {
  whenSignedOut = then;
}

async function ask<T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  let response: Response;
  try {
    response = await fetch(`/console/api/${path}`, {
      method,
      headers: {
        ...(body === undefined ? {} : { "content-type": "application/json" }),
        ...(csrf ? { "x-windfall-csrf": csrf } : {}),
        ...headers,
      },
      body: body === undefined ? null : JSON.stringify(body),
      credentials: "same-origin",
      redirect: "error",
    });
  } catch {
    throw new ApiError(0, "UNREACHABLE", "The console does not answer.");
  }
  const answer: unknown = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer as T;
  if (response.ok) throw new ApiError(0, "BROKEN", "The console's answer broke off.");
  const { code = "UNKNOWN", message = `The answer has the status ${response.status}.` } = (answer ?? {}) as {
    code?: string;
    message?: string;
  };
  if (response.status === 401 && path !== "session") whenSignedOut();
  throw new ApiError(response.status, code, message);
}

export async function who(): Promise<Who | null> {
  try {
    const found = await ask<Who>("GET", "session");
    csrf = found.csrf;
    return found;
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return null;
    throw error;
  }
}

export async function signIn(key: string): Promise<Who> {
  const found = await ask<Who>("POST", "session", undefined, { authorization: `Bearer ${key}` });
  csrf = found.csrf;
  return found;
}

export async function signOut(): Promise<void> {
  await ask("DELETE", "session");
  csrf = "";
}

/** A call of a service, by its public path. */
export function call<T>(path: string, body: unknown, user?: string): Promise<T> {
  return ask<T>("POST", `call${path}`, body, user === undefined ? {} : { "x-windfall-user": user });
}

export function get<T>(path: string): Promise<T> {
  return ask<T>("GET", path);
}

export function post<T>(path: string, body: unknown): Promise<T> {
  return ask<T>("POST", path, body);
}

/** Whether nobody knows if a call that failed took effect: its answer was lost, or the service does not know either. */
export function isLost(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 0 || error.status >= 500) && error.code !== "UNIMPLEMENTED";
}

/** Whether no service that can be reached has such a call. */
export function isNowhere(error: unknown): boolean {
  return error instanceof ApiError && (error.code === "UNIMPLEMENTED" || (error.status === 404 && error.code === "NOT_FOUND"));
}

/** What can be said to a person about a call that failed. */
export function told(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
