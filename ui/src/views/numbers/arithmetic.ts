// What a calculator does: products, softmax, norms; and the comparison of worked examples.

type Numbers = ArrayLike<number>

export const sumOf = (values: Numbers) => {
  let sum = 0
  for (let i = 0; i < values.length; i++) sum += values[i]
  return sum
}

/** a (n × k) times b (k × m), plus a row of m, times a factor. */
export function product(a: Numbers, b: Numbers, n: number, k: number, m: number, bias?: Numbers | null, factor = 1): Float64Array {
  const out = new Float64Array(n * m)
  for (let r = 0; r < n; r++)
    for (let c = 0; c < m; c++) {
      let sum = 0
      for (let i = 0; i < k; i++) sum += a[r * k + i] * b[i * m + c]
      out[r * m + c] = sum * factor + (bias?.[c] ?? 0)
    }
  return out
}

/** rows × cols → cols × rows; of a part of the rows, [from, to). */
export function turned(values: Numbers, rows: number, cols: number, from = 0, to = rows): Float32Array {
  const out = new Float32Array((to - from) * cols)
  for (let r = from; r < to; r++) for (let c = 0; c < cols; c++) out[c * (to - from) + (r - from)] = values[r * cols + c]
  return out
}

/** Softmax of every row; −∞ counts nothing. */
export function softmaxRows(values: Numbers, rows: number, cols: number): Float64Array {
  const out = new Float64Array(rows * cols)
  for (let r = 0; r < rows; r++) {
    let most = -Infinity
    for (let c = 0; c < cols; c++) most = Math.max(most, values[r * cols + c])
    let sum = 0
    for (let c = 0; c < cols; c++) sum += out[r * cols + c] = most === -Infinity ? 0 : Math.exp(values[r * cols + c] - most)
    for (let c = 0; c < cols; c++) out[r * cols + c] /= sum || 1
  }
  return out
}

export interface NormOf {
  mean: number
  variance: number
  root: number
}

/** Mean, biased variance and what is divided by, of one row; of an RMS norm the mean counts as 0. */
export function normOf(x: Numbers, from: number, d: number, eps: number, rms: boolean): NormOf {
  let mean = 0
  if (!rms) for (let i = 0; i < d; i++) mean += x[from + i] / d
  let variance = 0
  for (let i = 0; i < d; i++) variance += (x[from + i] - mean) ** 2 / d
  return { mean, variance, root: Math.sqrt(variance + eps) }
}

/** The likeliest token at each row of probabilities. */
export function likeliest(values: Numbers, rows: number, cols: number): number[] {
  return Array.from({ length: rows }, (_, r) => {
    let best = 0
    for (let c = 1; c < cols; c++) if (values[r * cols + c] > values[r * cols + best]) best = c
    return best
  })
}

/** Leaves of an example, beside each other: where it stands, what the document says, what the layers compute, and whether they agree. */
export interface Leaf {
  path: string
  expected: unknown
  computed: unknown
  fine: boolean
}

export function leaves(expected: any, computed: any, tolerance: number, path = ''): Leaf[] {
  if (expected !== null && typeof expected === 'object') {
    const keys = Object.keys(expected)
    const extra = computed && typeof computed === 'object' ? Object.keys(computed).filter((key) => !keys.includes(key)) : []
    return [...keys, ...extra].flatMap((key) => leaves(expected[key], computed?.[key], tolerance, path ? `${path} · ${key}` : key))
  }
  const fine = typeof expected === 'number' && typeof computed === 'number' ? Math.abs(expected - computed) <= tolerance : expected === computed
  return [{ path, expected, computed, fine }]
}
