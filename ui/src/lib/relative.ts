// What models add to a score for the distance between query and key.

/** Slopes of ALiBi's heads: a geometric sequence; between two powers of two, every other one of the next power fills up. */
export function slopes(heads: number): number[] {
  const whole = 2 ** Math.floor(Math.log2(heads))
  const first = Array.from({ length: whole }, (_, h) => 2 ** ((-8 * (h + 1)) / whole))
  return [...first, ...Array.from({ length: heads - whole }, (_, h) => 2 ** ((-8 * (2 * h + 1)) / (2 * whole)))]
}

/** T5's bucket of a distance, key minus query. */
export function bucket(distance: number, { buckets, maxDistance, bidirectional }: { buckets: number; maxDistance: number; bidirectional: boolean }): number {
  let [count, first] = [buckets, 0]
  if (bidirectional) {
    count = Math.floor(count / 2)
    first = distance > 0 ? count : 0
    distance = Math.abs(distance)
  } else distance = Math.max(0, -distance)
  const near = Math.floor(count / 2)
  if (distance < near) return first + distance
  const far = near + Math.floor(Math.fround(Math.log(distance / near) / Math.log(maxDistance / near)) * (count - near))
  return first + Math.min(count - 1, far)
}

/** What is added for a distance, key minus query, in one head: ALiBi's, or of T5 the number that `learnt` holds (bucket × head). */
export function relative(bias: Record<string, any>, distance: number, head: number, heads: number, learnt: ArrayLike<number> | undefined): number {
  if (bias.type === 'alibi') return -slopes(heads)[head] * Math.abs(distance)
  const place = bucket(distance, { buckets: bias.buckets, maxDistance: bias.max_distance, bidirectional: bias.bidirectional })
  return learnt?.[place * heads + head] ?? NaN
}
