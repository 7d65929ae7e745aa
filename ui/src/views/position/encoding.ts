// How positions are told: sinusoids and their law of rotation, slopes, buckets; and the schemes that were rejected.

import type { Architecture } from '../../lib/types'

/** One way of telling positions, as a stack has it. */
export type Scheme =
  | { kind: 'sinusoidal'; d: number; base: number; layout: 'interleaved' | 'halves'; first: number; maxLen: number }
  | { kind: 'learned'; d: number; first: number; maxLen: number; matrix: string }
  | { kind: 'rotary'; d: number; base: number; layout: 'interleaved' | 'halves'; scaling: string | null; head: number }
  | { kind: 'alibi'; heads: number; causal: boolean }
  | { kind: 't5'; buckets: number; maxDistance: number; bidirectional: boolean; heads: number; matrix: string; causal: boolean }
  | { kind: 'recurrent' }
  | { kind: 'none' }

export function schemes(architecture: Architecture | null, stack: 'encoder' | 'decoder'): Scheme[] {
  const config = architecture?.config[stack]
  if (!architecture || !config) return []
  const d: number = architecture.config.d_model
  const parts = architecture.parts.filter((part) => part.stack === stack || part.stack === null)
  const matrix = (wanted: RegExp) => parts.flatMap((part) => Object.keys(part.weights)).find((name) => wanted.test(name))
  const block = config.blocks?.[0] ?? {}
  const mixer = block.mixer ?? {}
  const out: Scheme[] = []
  const { position, bias } = config
  if (position?.type === 'sinusoidal') out.push({ kind: 'sinusoidal', d, base: position.base, layout: position.layout, first: position.first ?? 0, maxLen: position.max_len })
  if (position?.type === 'learned') out.push({ kind: 'learned', d, first: position.first ?? 0, maxLen: position.max_len, matrix: matrix(new RegExp(`^${stack}\\.position\\.`)) ?? `${stack}.position.weight` })
  if (architecture.config.embed?.type === 'patches' && stack === 'encoder') {
    const name = parts.flatMap((part) => Object.entries(part.weights)).find(([each]) => /^embed\.position/.test(each))
    if (name) out.push({ kind: 'learned', d, first: 0, maxLen: name[1][0], matrix: name[0] })
  }
  if (mixer.rotary) {
    const head = mixer.d_head ?? d / mixer.n_heads
    const { base, fraction = 1, layout, scaling } = mixer.rotary
    out.push({ kind: 'rotary', d: Math.floor(head * fraction), base, layout, scaling: scaling?.type ?? null, head })
  }
  if (bias?.type === 'alibi') out.push({ kind: 'alibi', heads: mixer.n_heads ?? 1, causal: !!mixer.causal })
  if (bias?.type === 't5')
    out.push({ kind: 't5', buckets: bias.buckets, maxDistance: bias.max_distance, bidirectional: bias.bidirectional, heads: mixer.n_heads ?? 1, causal: !!mixer.causal, matrix: matrix(new RegExp(`^${stack}\\.bias\\.`)) ?? `${stack}.bias.weight` })
  if (mixer.type === 'retention') out.push({ kind: 'rotary', d: mixer.d_head ?? d / mixer.n_heads, base: mixer.base, layout: 'interleaved', scaling: null, head: mixer.d_head ?? d / mixer.n_heads })
  if (!out.length) out.push({ kind: mixer.type && mixer.type !== 'attention' ? 'recurrent' : 'none' })
  return out
}

/** ω_i = base^(−2i/d): the angle by which pair i turns from one position to the next. */
export const frequencies = (d: number, base: number): number[] => Array.from({ length: Math.floor(d / 2) }, (_, i) => base ** ((-2 * i) / d))

/** PE of positions first … first + count − 1, row-major: sine and cosine of each pair, side by side or in two halves. */
export function sinusoids(count: number, d: number, base: number, layout: 'interleaved' | 'halves', first = 0): Float32Array {
  const omega = frequencies(d, base)
  const out = new Float32Array(count * d)
  for (let p = 0; p < count; p++)
    omega.forEach((w, i) => {
      const [sine, cosine] = columns(i, d, layout)
      out[p * d + sine] = Math.sin((first + p) * w)
      out[p * d + cosine] = Math.cos((first + p) * w)
    })
  return out
}

/** Columns of a pair's sine and cosine. */
export const columns = (pair: number, d: number, layout: 'interleaved' | 'halves'): [number, number] => (layout === 'interleaved' ? [2 * pair, 2 * pair + 1] : [pair, pair + d / 2])

/** R(k) for one frequency, by which (sin, cos) of any position becomes that of k positions on. */
export function rotation(k: number, omega: number): [[number, number], [number, number]] {
  const [c, s] = [Math.cos(k * omega), Math.sin(k * omega)]
  return [[c, s], [-s, c]] // prettier-ignore
}

export const turn = ([[a, b], [c, d]]: [[number, number], [number, number]], [x, y]: [number, number]): [number, number] => [a * x + b * y, c * x + d * y]

/** PE(p) · PE(p + k), the same for every p: the sum of cos(k ω_i). */
export const dotAt = (k: number, omega: number[]): number => omega.reduce((sum, w) => sum + Math.cos(k * w), 0)

/** A few pairs from the fastest to the slowest, evenly by their number. */
export function some(count: number, most: number): number[] {
  if (count <= most) return Array.from({ length: count }, (_, i) => i)
  return Array.from({ length: most }, (_, i) => Math.round((i * (count - 1)) / (most - 1)))
}

export { bucket, slopes } from '../../lib/relative'

/** Bits of a position, the last first. */
export const binary = (position: number, bits: number): number[] => Array.from({ length: bits }, (_, i) => (position >> i) & 1)

/** Length of the step from each row to the next. */
export function steps(rows: number[][]): number[] {
  return rows.slice(1).map((row, i) => Math.sqrt(row.reduce((sum, value, j) => sum + (value - rows[i][j]) ** 2, 0)))
}

export function layerNorm(x: ArrayLike<number>, gain: ArrayLike<number>, offset: ArrayLike<number> | null, eps: number): Float32Array {
  const n = x.length
  let mean = 0
  for (let i = 0; i < n; i++) mean += x[i] / n
  let variance = 0
  for (let i = 0; i < n; i++) variance += (x[i] - mean) ** 2 / n
  return Float32Array.from({ length: n }, (_, i) => ((x[i] - mean) / Math.sqrt(variance + eps)) * gain[i] + (offset?.[i] ?? 0))
}

/** A symmetric scale that holds 98 of 100 values: a single loud feature must not silence the rest. */
export function quiet(values: ArrayLike<number>): [number, number] {
  const sizes = Float32Array.from(values, Math.abs).sort()
  const reach = sizes[Math.min(sizes.length - 1, Math.floor(sizes.length * 0.98))] || 1
  return [-reach, reach]
}
