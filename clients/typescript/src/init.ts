/**
 * The fields of a message that are set; the others have their zero value. Numbers of 64 bits are `bigint`, because a `number`
 * would lose what lies beyond 2^53: another user, another amount.
 */
export type Init<T> = T extends bigint | Uint8Array | string | number | boolean | undefined
  ? T
  : T extends (infer U)[]
    ? Init<U>[]
    : T extends { $case: string }
      ? T
      : { [K in keyof T]?: Init<T[K]> };
