// The arithmetic of one cell, done again in the page, so that each step can be set beside what the model itself recorded.

type Numbers = ArrayLike<number>

export const products = (a: Numbers, b: Numbers): number[] => Array.from({ length: Math.min(a.length, b.length) }, (_, i) => a[i] * b[i])

export const total = (values: Numbers): number => {
  let sum = 0
  for (let i = 0; i < values.length; i++) sum += values[i]
  return sum
}

export interface Softmax {
  /** The largest score that is not masked; it is subtracted first, so that nothing overflows. */
  max: number
  /** exp(score − max), 0 where masked. */
  exps: number[]
  sum: number
  /** All zero where everything is masked. */
  weights: number[]
}

/** Softmax over what is not masked. */
export function softmax(scores: Numbers, masked: (index: number) => boolean = () => false): Softmax {
  let max = -Infinity
  for (let i = 0; i < scores.length; i++) if (!masked(i) && scores[i] > max) max = scores[i]
  const exps = Array.from({ length: scores.length }, (_, i) => (masked(i) || max === -Infinity ? 0 : Math.exp(scores[i] - max)))
  const sum = total(exps)
  return { max, exps, sum, weights: exps.map((each) => (sum ? each / sum : 0)) }
}

/** The largest weight if the same row of scores had not been divided: what ÷√d prevents. `bias` is what was added after it. */
export function unscaled(scores: Numbers, bias: Numbers | null, scale: number, masked: (index: number) => boolean): number {
  const raw = Array.from({ length: scores.length }, (_, i) => (scores[i] - (bias?.[i] ?? 0)) / scale + (bias?.[i] ?? 0))
  return Math.max(...softmax(raw, masked).weights)
}

/** Equal as far as float32 lets sums of that size be: `size` is the sum of what was added, without signs. */
export const agrees = (mine: number, theirs: number, size = Math.abs(theirs)): boolean =>
  mine === theirs || (Number.isNaN(mine) && Number.isNaN(theirs)) || Math.abs(mine - theirs) <= 1e-6 + 2e-5 * Math.max(size, Math.abs(theirs))

export const sizeOf = (values: Numbers): number => {
  let sum = 0
  for (let i = 0; i < values.length; i++) sum += Math.abs(values[i])
  return sum
}

/** Indices from the largest to the smallest by size; those of equal size in order. */
export const bySize = (values: Numbers): number[] =>
  Array.from({ length: values.length }, (_, i) => i).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b)

/** The heaviest `most` of them and `keep`, in the order of the text; where there are more, those of no weight are left out. */
export function foremost(weights: Numbers, most: number, keep = -1): number[] {
  const first = bySize(weights).slice(0, most)
  if (weights.length > most) while (first.length > 1 && !weights[first.at(-1)!]) first.pop()
  if (keep >= 0 && keep < weights.length && !first.includes(keep)) first.splice(first.length < most ? first.length : -1, 1, keep)
  return first.sort((a, b) => a - b)
}

/** What each key brings: rows of weight × value, row-major over the chosen keys. */
export function gathered(weights: Numbers, values: Numbers, width: number, keys: number[]): Float32Array {
  const out = new Float32Array(keys.length * width)
  keys.forEach((key, i) => {
    for (let j = 0; j < width; j++) out[i * width + j] = weights[key] * values[key * width + j]
  })
  return out
}

/** What each head brings to one feature of the result: z of all heads, side by side, against one row of W_O. */
export function headShares(z: Numbers, row: Numbers, heads: number): number[] {
  const width = z.length / heads
  return Array.from({ length: heads }, (_, h) => {
    let sum = 0
    for (let k = 0; k < width; k++) sum += z[h * width + k] * row[h * width + k]
    return sum
  })
}

/** A matrix of at most `most` rows and columns for a small picture: each cell holds the value of greatest size among those that it stands for. */
export function pooled(values: Numbers, rows: number, cols: number, most: number): { values: Numbers; rows: number; cols: number } {
  const [tall, wide] = [Math.min(rows, most), Math.min(cols, most)]
  if (tall === rows && wide === cols) return { values, rows, cols }
  const out = new Float32Array(tall * wide)
  for (let r = 0; r < rows; r++)
    for (let c = 0; c < cols; c++) {
      const at = Math.floor((r * tall) / rows) * wide + Math.floor((c * wide) / cols)
      if (Math.abs(values[r * cols + c]) > Math.abs(out[at])) out[at] = values[r * cols + c]
    }
  return { values: out, rows: tall, cols: wide }
}
