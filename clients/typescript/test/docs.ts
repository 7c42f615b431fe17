import { fileURLToPath } from "node:url";

/** A file of the repository's documentation, from where the compiled tests lie. */
export function docs(name: string): string {
  return fileURLToPath(new URL(`../../../../docs/${name}`, import.meta.url));
}
