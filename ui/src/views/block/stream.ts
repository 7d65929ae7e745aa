// Where the residual stream passes, which norms stand in it, and the arithmetic of both. All names come from the run's own parents,
// so that parallel blocks, mixers of any kind, and norms before or behind are read alike.

import type { Architecture, Part, PartKind, Run } from '../../lib/types'

type Numbers = ArrayLike<number>
export type Sub = 'mixer' | 'cross' | 'ffn'

/** One place where something is added to the stream. Tensors are told by name. */
export interface Place {
  /** Module path, such as "decoder.layers.0.cross". */
  id: string
  layer: number
  sub: Sub
  kind: PartKind
  /** The stream as it arrives, what is added, the sum, and the stream as it goes on. */
  before: string
  added: string
  sum: string
  after: string
  order: 'pre' | 'post'
}

/** A norm: its input is the sum of `before`. */
export interface Norm {
  id: string
  layer: number | null
  /** What it stands at: a sub-layer, or the stack's begin or end. */
  at: Sub | 'input' | 'final'
  before: string[]
  after: string
  gamma: string | null
  beta: string | null
  config: NormConfig
}

export interface NormConfig {
  type: 'layer' | 'rms'
  eps: number
}

const parentsOf = (run: Run, name: string) => run.tensors.find((each) => each.name === name)?.parents ?? []
const has = (run: Run, name: string) => run.tensors.some((each) => each.name === name)

/** Everything that is added to the stream of a stack, in order. */
export function places(architecture: Architecture, run: Run, stack: string): Place[] {
  const out: Place[] = []
  for (const part of architecture.parts) {
    const [, sub] = /\.layers\.\d+\.(mixer|cross|ffn)$/.exec(part.id) ?? []
    if (part.stack !== stack || part.layer === null || !sub) continue
    const added = part.id + '.result'
    const sum = part.id + '_residual.sum'
    if (!has(run, added) || !has(run, sum)) continue
    const order = architecture.config[stack]?.blocks?.[part.layer]?.order === 'pre' ? 'pre' : 'post'
    const before = parentsOf(run, sum).find((name) => name !== added && has(run, name)) ?? `${stack}.input`
    out.push({ id: part.id, layer: part.layer, sub: sub as Sub, kind: part.kind, before, added, sum, after: order === 'post' ? part.id + '_residual.normed' : sum, order })
  }
  return out
}

/** The norms of a stack, in the order in which data passes them. */
export function norms(architecture: Architecture, run: Run, stack: string): Norm[] {
  const own = architecture.config[stack] ?? {}
  return architecture.parts.flatMap((part): Norm[] => {
    if (part.stack !== stack || part.kind !== 'norm') return []
    const after = part.taps.at(-1)
    const before = after ? parentsOf(run, after).filter((name) => has(run, name)) : []
    if (!after || !before.length) return []
    const sub = /\.(mixer|cross|ffn)_residual\.norm$/.exec(part.id)?.[1] as Sub | undefined
    const at = sub ?? (part.id.endsWith('input_norm') ? 'input' : 'final')
    const config = (at === 'input' ? own.input_norm : at === 'final' ? own.final_norm : own.blocks?.[part.layer ?? 0]?.norm) ?? {}
    const named = (ending: string) => Object.keys(part.weights).find((name) => name.endsWith(ending)) ?? null
    return [{ id: part.id, layer: part.layer, at, before, after, gamma: named('norm.weight'), beta: named('norm.bias'), config: { type: config.type === 'rms' ? 'rms' : 'layer', eps: config.eps ?? 1e-5 } }]
  })
}

export const ffnOf = (architecture: Architecture, stack: string, layer: number): Part | undefined =>
  architecture.parts.find((part) => part.stack === stack && part.layer === layer && part.kind === 'feed-forward' && part.id.endsWith('.ffn'))

export const dot = (a: Numbers, b: Numbers): number => {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i]
  return sum
}

export const length = (x: Numbers): number => Math.sqrt(dot(x, x))

export const cosine = (a: Numbers, b: Numbers): number => {
  const size = length(a) * length(b)
  return size ? Math.max(-1, Math.min(1, dot(a, b) / size)) : 0
}

/** The angle whose cosine it is, in degrees. */
export const degrees = (cos: number): number => (Math.acos(Math.max(-1, Math.min(1, cos))) * 180) / Math.PI

/** What one place does to one token. */
export interface Step {
  before: number
  added: number
  sum: number
  after: number
  /** Cosine between the stream before and the sum. */
  cos: number
  /** Cosine between what is added and the stream that it is added to. */
  along: number
}

export const step = (before: Numbers, added: Numbers, sum: Numbers, after: Numbers): Step => ({
  before: length(before),
  added: length(added),
  sum: length(sum),
  after: length(after),
  cos: cosine(before, sum),
  along: cosine(before, added),
})

/** The place that turns the stream most; −1 if there is none. */
export const strongest = (steps: Step[]): number => steps.reduce((best, each, i) => (best < 0 || each.cos < steps[best].cos ? i : best), -1)

export interface Normalised {
  mean: number
  /** Divided by d, not by d − 1. */
  variance: number
  /** What is divided by: ε stands inside the root. */
  root: number
  centred: Float64Array
  hat: Float64Array
  y: Float64Array
}

/** Layer normalisation, or that of the root mean square (which subtracts no mean: then `mean` is 0 and `variance` the mean of x²). */
export function normalise(x: Numbers, config: NormConfig, gamma?: Numbers | null, beta?: Numbers | null): Normalised {
  const n = x.length || 1
  let mean = 0
  if (config.type === 'layer') {
    for (let i = 0; i < x.length; i++) mean += x[i]
    mean /= n
  }
  const centred = Float64Array.from(x, (value) => value - mean)
  const variance = dot(centred, centred) / n
  const root = Math.sqrt(variance + config.eps)
  const hat = centred.map((value) => value / root)
  return { mean, variance, root, centred, hat, y: hat.map((value, i) => value * (gamma?.[i] ?? 1) + (beta?.[i] ?? 0)) }
}

/** Sum of several vectors. */
export function added(vectors: Numbers[]): Float32Array {
  const out = new Float32Array(vectors[0]?.length ?? 0)
  for (const each of vectors) for (let i = 0; i < out.length; i++) out[i] += each[i]
  return out
}

// erf to 1.2e-7 (Numerical Recipes' erfc by Chebyshev fit); float32 knows no more.
function erf(x: number): number {
  const z = Math.abs(x)
  const t = 1 / (1 + z / 2)
  const fit = [-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806, 0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277]
  const rest = t * Math.exp(-z * z + fit.reduceRight((sum, each) => each + t * sum, 0))
  return x >= 0 ? 1 - rest : rest - 1
}

const sigmoid = (x: number) => 1 / (1 + Math.exp(-x))

/** The non-linearities that models have, by their names in the configuration. */
export const ACTIVATIONS: Record<string, (x: number) => number> = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => (x / 2) * (1 + erf(x / Math.SQRT2)),
  'gelu-tanh': (x) => (x / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  silu: (x) => x * sigmoid(x),
  'quick-gelu': (x) => x * sigmoid(1.702 * x),
  tanh: Math.tanh,
  'relu²': (x) => Math.max(0, x) ** 2,
}

/** The name of a feed-forward part's non-linearity, and whether it opens a gate. */
export function activation(config: Record<string, any> | null | undefined): { name: string; gated: boolean } {
  if (config?.type === 'channel-mix') return { name: 'relu²', gated: false }
  return { name: config?.activation ?? (config?.type === 'gated' ? 'silu' : 'relu'), gated: config?.type === 'gated' }
}

/** Shares of numbers that are exactly zero, and that are less than a hundredth of the largest. */
export function quiet(values: Numbers): { zero: number; small: number } {
  let [most, zero, small] = [0, 0, 0]
  for (let i = 0; i < values.length; i++) most = Math.max(most, Math.abs(values[i]))
  for (let i = 0; i < values.length; i++) {
    if (values[i] === 0) zero++
    if (Math.abs(values[i]) <= most / 100) small++
  }
  const n = values.length || 1
  return { zero: zero / n, small: small / n }
}

/** The indices of the `most` largest by size, largest first. */
export const largest = (values: Numbers, most: number): number[] =>
  Array.from({ length: values.length }, (_, i) => i).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]) || a - b).slice(0, most) // prettier-ignore

/** A row of numbers as a block of rows that is near to 4 times as wide as high; what is missing at its end is NaN. */
export function folded(values: Numbers, most = 64): { values: Float32Array; rows: number; cols: number } {
  const cols = Math.min(values.length, most, Math.max(16, 2 ** Math.ceil(Math.log2(Math.sqrt(values.length * 4)))))
  const rows = Math.ceil(values.length / (cols || 1))
  const out = new Float32Array(rows * cols).fill(NaN)
  out.set(values)
  return { values: out, rows, cols }
}

/** Matrix (rows × cols, row-major) times a vector, plus a bias. */
export function times(matrix: Numbers, rows: number, x: Numbers, bias?: Numbers | null): Float64Array {
  const out = new Float64Array(rows)
  for (let r = 0; r < rows; r++) {
    let sum = bias?.[r] ?? 0
    for (let c = 0; c < x.length; c++) sum += matrix[r * x.length + c] * x[c]
    out[r] = sum
  }
  return out
}

/** The first layer from which the last layer's answer stays on top; layers are rows of ids, the last is the model's own. */
export function settled(ids: number[]): number {
  let first = ids.length - 1
  while (first > 0 && ids[first - 1] === ids.at(-1)) first--
  return first
}

/** The window of at most `most` columns that holds `focus`. */
export function window(count: number, focus: number, most: number): [number, number] {
  const from = Math.max(0, Math.min(count - most, focus - Math.floor(most / 2)))
  return [from, Math.min(count, from + most)]
}
