// What a target's log-probabilities say: its score, its weakest tokens, and how two targets differ.

import { firstWritten } from '../../lib/force'
import type { Run, RunRequest, Token } from '../../lib/types'
import { textWidth } from '../../lib/text'

/** A label that the model wrote, or was given, with what it thought of it. */
export interface Said {
  token: Token
  logprob: number
  /** Its place among the target's positions. */
  at: number
}

export const said = (run: Run): Said[] => run.labels.map((token, at) => ({ token, logprob: run.label_logprobs[at], at })).slice(firstWritten(run))

export interface Score {
  sum: number
  n: number
  alpha: number
  penalty: number
  score: number
  /** e^(−mean log p): among how many equally likely tokens it would have felt like choosing. */
  perplexity: number
}

export function score(run: Run): Score | null {
  const all = said(run)
  if (!all.length) return null
  const n = all.length
  const sum = all.reduce((total, each) => total + each.logprob, 0)
  const alpha = run.decoding?.length_penalty ?? run.request.length_penalty ?? derived(sum, n, run.output.score)
  const penalty = ((5 + n) / 6) ** alpha
  return { sum, n, alpha, penalty, score: sum / penalty, perplexity: Math.exp(-sum / n) }
}

/** The α with which a server that does not name it has scored. */
function derived(sum: number, n: number, told: number | null): number {
  if (told === null || n < 2 || !sum || !told) return 1
  return Number((Math.log(sum / told) / Math.log((5 + n) / 6)).toFixed(3))
}

/** The least likely tokens, the worst first. */
export const weakest = (all: Said[], most = 3): Said[] => [...all].sort((a, b) => a.logprob - b.logprob).slice(0, most)

/** Columns of two targets side by side: places in each, −1 where the other has one more. The longest common part is kept together. */
export function align(a: number[], b: number[]): [number, number][] {
  const longest = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1))
  for (let i = a.length - 1; i >= 0; i--) for (let j = b.length - 1; j >= 0; j--) longest[i][j] = a[i] === b[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1])
  const out: [number, number][] = []
  let [i, j] = [0, 0]
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) out.push([i++, j++])
    else if (i < a.length && (j >= b.length || longest[i + 1][j] >= longest[i][j + 1])) {
      // One word for another stands in one column.
      if (j < b.length && longest[i + 1][j + 1] === longest[i][j]) out.push([i++, j++])
      else out.push([i++, -1])
    } else out.push([-1, j++])
  }
  return out
}

export type Other = { kind: 'none' | 'target' | 'text' | 'model'; value: string }

/** "target:I am fond of it" as it stands in a link. */
export function parse(compare: string): Other {
  const [, kind, value] = /^(target|text|model):(.+)$/s.exec(compare) ?? []
  return kind ? { kind: kind as Other['kind'], value } : { kind: 'none', value: '' }
}

/** What the second side asks for. `directions` are those of another model. */
export function second(base: RunRequest, { kind, value }: Other, directions: [string, string][] = []): RunRequest | null {
  const { prefix, target, from, to, ...rest } = base
  if (kind === 'target') return { ...rest, from, to, target: value }
  if (kind === 'text') {
    const fits = !from || (from === 'zh') === /\p{Script=Han}/u.test(value)
    return { ...rest, ...(fits && { from, to }), text: value }
  }
  if (kind !== 'model') return null
  const fits = directions.some(([a, b]) => a === from && b === to)
  return { ...rest, ...(fits && { from, to }), model: value }
}

/** Patterns of attention of one kind, by layer: names of a run's tensors. */
export function patterns(run: Run, kind: 'cross' | 'masked' | 'self'): string[] {
  const wanted = kind === 'self' ? /^encoder\.layers\.\d+\.mixer\.pattern$/ : kind === 'cross' ? /^decoder\.layers\.\d+\.cross\.pattern$/ : /^decoder\.layers\.\d+\.mixer\.pattern$/
  return run.tensors.filter((each) => wanted.test(each.name)).map((each) => each.name)
}

/** Tokens in lines of at most `room` pixels, none narrower than its probability. */
export function lines(texts: string[], room: number): { x: number; line: number; width: number }[] {
  let x = 0
  let line = 0
  return texts.map((text) => {
    const width = Math.min(Math.max(52, textWidth(text, 13) + 18), Math.max(60, room))
    if (x > 0 && x + width > room) (x = 0), line++
    const placed = { x, line, width }
    x += width + 3
    return placed
  })
}
