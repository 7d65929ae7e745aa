// Which attention there is, and which of its tensors: names, axes, masks, shared heads.

import type { Kind, Stack } from '../../lib/hash'
import type { Architecture, Part, Run, TensorInfo } from '../../lib/types'

/** One of the kinds of looking that a model has. */
export interface Choice {
  stack: Stack
  kind: Kind
  part: Part
}

const PLAIN = ['feed-forward', 'add', 'norm']

/** Encoder, decoder and cross-attention, as far as the model has them; each by its first part. */
export function choices(architecture: Architecture | null): Choice[] {
  const out: Choice[] = []
  for (const part of architecture?.parts ?? []) {
    if (part.layer === null || !part.stack || PLAIN.includes(part.kind)) continue
    const kind: Kind = part.kind === 'cross-attention' ? 'cross' : part.stack === 'encoder' ? 'self' : 'masked'
    if (!out.some((each) => each.kind === kind && each.stack === part.stack)) out.push({ stack: part.stack, kind, part })
  }
  return out
}

/** The same kind of part in every layer of its stack, in order. */
export const siblings = (architecture: Architecture | null, part: Part): Part[] =>
  (architecture?.parts ?? []).filter(
    (each) => each.layer !== null && each.stack === part.stack && !PLAIN.includes(each.kind) && (each.kind === 'cross-attention') === (part.kind === 'cross-attention'),
  )

/** Tensors that a run recorded in a part, by what stands behind the part's name: "pattern", "ahead.pattern" … */
export function recorded(run: Run, part: Part): Map<string, TensorInfo> {
  const out = new Map<string, TensorInfo>()
  for (const info of run.tensors) if (info.name.startsWith(part.id + '.')) out.set(info.name.slice(part.id.length + 1), info)
  return out
}

/** Letters of the axes without the batch: "B H T S" → "HTS". */
export const letters = (info: TensorInfo): string => info.axes.replaceAll(' ', '').replace(/^B/, '')

/** How long an axis is; 0 if the tensor has none of that name. */
export function along(info: TensorInfo | undefined, axis: string): number {
  const at = info ? info.axes.split(' ').indexOf(axis) : -1
  return at < 0 ? 0 : info!.shape[at]
}

/** Which of the shared heads of keys and values serves a head of queries. */
export const sharedHead = (head: number, heads: number, shared: number): number => Math.floor(head / Math.max(1, Math.round(heads / (shared || heads))))

/** How a tensor is read for one head: `{ h: 3 }`, or `{ g: 1 }` where heads share it, or nothing. */
export function ofHead(info: TensorInfo, head: number, heads: number): Record<string, number> {
  if (along(info, 'H')) return { h: Math.min(head, along(info, 'H') - 1) }
  if (along(info, 'G')) return { g: sharedHead(head, heads, along(info, 'G')) }
  return {}
}

export interface Sight {
  causal: boolean
  /** True where a key is real. */
  real: boolean[]
  window?: number | null
  /** Of attention that sees a part of the keys by a plan of its own: what was seen. */
  seen?: (row: number, col: number) => boolean
}

/** Why a query does not see a key; null where it does. Padding is told first, since it hides a key from everyone. */
export function hidden({ causal, real, window, seen }: Sight, row: number, col: number): 'padding' | 'causal' | 'window' | null {
  if (real[col] === false) return 'padding'
  if (causal && col > row) return 'causal'
  if (window && Math.abs(row - col) >= window) return 'window'
  if (seen && !seen(row, col)) return 'window'
  return null
}

/** The part's own configuration: `config.encoder.blocks[2].mixer`. */
export function configOf(architecture: Architecture | null, part: Part): Record<string, any> {
  const block = part.stack && architecture?.config[part.stack]?.blocks?.[part.layer ?? 0]
  return (block && (part.kind === 'cross-attention' ? block.cross : block.mixer)) || {}
}

/** True where weights are a softmax of scores: then they are made step by step. */
export const isSoftmax = (names: Iterable<string>): boolean => {
  const held = new Set(names)
  return ['q', 'k', 'v', 'scores', 'pattern', 'z', 'result'].every((name) => held.has(name)) && !held.has('decay')
}

/** What a head does with a sentence: how much of its weight, on average, goes to itself, one before, one after, the first; and its entropy in bits. */
export interface Habits {
  self: number
  before: number
  after: number
  first: number
  entropy: number
}

export function habits(pattern: ArrayLike<number>, rows: number, cols: number, real: (row: number) => boolean = () => true): Habits {
  const out = { self: 0, before: 0, after: 0, first: 0, entropy: 0 }
  let counted = 0
  for (let r = 0; r < rows; r++) {
    if (!real(r)) continue
    counted++
    const at = (c: number) => (c >= 0 && c < cols ? pattern[r * cols + c] : 0)
    out.self += at(r)
    out.before += at(r - 1)
    out.after += at(r + 1)
    out.first += at(0)
    for (let c = 0; c < cols; c++) if (at(c) > 0) out.entropy -= at(c) * Math.log2(at(c))
  }
  for (const key of Object.keys(out) as (keyof Habits)[]) out[key] /= counted || 1
  return out
}
