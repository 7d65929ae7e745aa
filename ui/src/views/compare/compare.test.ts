import { describe, expect, it } from 'vitest'

import type { Run, Token } from '../../lib/types'
import { align, lines, parse, patterns, said, score, second, weakest } from './score'

const token = (id: number): Token => ({ id, piece: String(id), text: String(id), special: false, span: null })
const run = (logprobs: number[], more: object = {}) =>
  ({ request: { model: 'm' }, source: [token(90)], target: logprobs.map((_, i) => token(50 + i)), labels: logprobs.map((_, i) => token(i)), label_logprobs: logprobs, decoding: null, output: { score: null }, tensors: [], ...more }) as unknown as Run // prettier-ignore

describe('the score', () => {
  it('is the sum of log-probabilities over ((5 + n) / 6)^α', () => {
    const found = score(run([-1, -2, -3], { request: { model: 'm', length_penalty: 2 } }))!
    expect(found.sum).toBe(-6)
    expect(found.score).toBeCloseTo(-6 / (8 / 6) ** 2, 12)
    expect(found.perplexity).toBeCloseTo(Math.exp(2), 12)
  })
  it('finds the α that the server used', () => {
    const told = -6 / (8 / 6) ** 1.5
    expect(score(run([-1, -2, -3], { output: { score: told } }))!.alpha).toBe(1.5)
    expect(score(run([-1, -2, -3], { output: { score: told } }))!.score).toBeCloseTo(told, 10)
  })
  it('is none of a text that was not written', () => expect(score(run([]))).toBeNull())
  it('leaves a prompt out', () => {
    const text = run([-9, -1, -2], { source: [50, 51].map(token) })
    expect(said(text).map((each) => each.at)).toEqual([1, 2])
    expect(score(text)!.sum).toBe(-3)
  })
})

describe('the weakest tokens', () => {
  it('come the worst first', () => expect(weakest(said(run([-1, -5, -0.1, -2])), 2).map((each) => each.at)).toEqual([1, 3]))
})

describe('two targets', () => {
  it('share what they have in common', () => {
    expect(align([1, 2, 3], [1, 2, 3])).toEqual([[0, 0], [1, 1], [2, 2]])
    expect(align([1, 2, 3], [1, 9, 3])).toEqual([[0, 0], [1, 1], [2, 2]])
    expect(align([1, 3], [1, 2, 3])).toEqual([[0, 0], [-1, 1], [1, 2]])
    expect(align([1, 2, 3], [1, 3])).toEqual([[0, 0], [1, -1], [2, 1]])
    expect(align([], [4])).toEqual([[-1, 0]])
  })
  it('lose no token', () => {
    for (let seed = 0; seed < 30; seed++) {
      const a = Array.from({ length: seed % 7 }, (_, i) => (i * seed) % 4)
      const b = Array.from({ length: (seed * 3) % 8 }, (_, i) => (i + seed) % 4)
      const columns = align(a, b)
      expect(columns.map(([i]) => i).filter((i) => i >= 0)).toEqual([...a.keys()])
      expect(columns.map(([, j]) => j).filter((j) => j >= 0)).toEqual([...b.keys()])
    }
  })
})

describe('the second side', () => {
  it('is read from a link', () => {
    expect(parse('target:a: b\nc')).toEqual({ kind: 'target', value: 'a: b\nc' })
    expect(parse('nonsense').kind).toBe('none')
    expect(parse('model:').kind).toBe('none')
  })
  const base = { model: 'm', text: '我', from: 'zh', to: 'en', prefix: [3], beam_size: 4 }
  it('asks for the same but one thing', () => {
    expect(second(base, parse('target:I'))).toEqual({ model: 'm', text: '我', from: 'zh', to: 'en', target: 'I', beam_size: 4 })
    expect(second(base, parse('text:你'))).toEqual({ model: 'm', text: '你', from: 'zh', to: 'en', beam_size: 4 })
    expect(second(base, parse('text:you'))).toEqual({ model: 'm', text: 'you', beam_size: 4 })
    expect(second(base, parse('model:n'), [['zh', 'en']])).toEqual({ model: 'n', text: '我', from: 'zh', to: 'en', beam_size: 4 })
    expect(second(base, parse('model:n'))).toEqual({ model: 'n', text: '我', beam_size: 4 })
    expect(second(base, parse(''))).toBeNull()
  })
})

describe('drawing', () => {
  it('names patterns by layer', () => {
    const names = ['encoder.layers.0.mixer.pattern', 'decoder.layers.0.mixer.pattern', 'decoder.layers.0.cross.pattern', 'decoder.layers.0.cross.scores']
    const all = run([], { tensors: names.map((name) => ({ name })) })
    expect(['self', 'masked', 'cross'].map((kind) => patterns(all, kind as 'self')[0])).toEqual(names.slice(0, 3))
  })
  it('breaks lines within the room', () => {
    const placed = lines(Array.from({ length: 40 }, () => 'word'), 300)
    for (const each of placed) expect(each.x + each.width).toBeLessThanOrEqual(300)
    expect(placed.at(-1)!.line).toBeGreaterThan(3)
  })
})
