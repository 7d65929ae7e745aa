import { describe, expect, it } from 'vitest'

import type { Architecture, Part, Run } from '../../lib/types'
import { agrees, bySize, foremost, gathered, headShares, pooled, products, softmax, total, unscaled } from './arithmetic'
import { along, choices, habits, hidden, isSoftmax, ofHead, recorded, sharedHead, siblings } from './which'

// A small generator, so that every run sees the same numbers.
function random(seed: number) {
  return () => ((seed = (seed * 1664525 + 1013904223) % 4294967296) / 4294967296) * 4 - 2
}

const part = (id: string, kind: string, stack: string | null, layer: number | null) => ({ id, kind, stack, layer, taps: [], weights: {}, parameters: 0 }) as unknown as Part

const model = {
  parts: [
    part('source', 'tokens', 'encoder', null), part('encoder.layers.0.mixer', 'self-attention', 'encoder', 0), part('encoder.layers.0.ffn', 'feed-forward', 'encoder', 0),
    part('encoder.layers.1.mixer', 'retention', 'encoder', 1), part('decoder.layers.0.mixer', 'self-attention', 'decoder', 0), part('decoder.layers.0.cross', 'cross-attention', 'decoder', 0),
  ],
} as unknown as Architecture // prettier-ignore

describe('softmax', () => {
  const next = random(7)
  const scores = Array.from({ length: 9 }, next)
  const masked = (i: number) => i === 2 || i > 6
  const { max, exps, sum, weights } = softmax(scores, masked)

  it('sums to one over what is seen, and gives nothing to what is masked', () => {
    expect(total(weights)).toBeCloseTo(1, 12)
    expect([weights[2], weights[7], weights[8]]).toEqual([0, 0, 0])
    expect(exps.reduce((a, b) => a + b)).toBeCloseTo(sum, 12)
  })
  it('is the definition', () => {
    const seen = scores.filter((_, i) => !masked(i)).map(Math.exp)
    expect(weights[4]).toBeCloseTo(Math.exp(scores[4]) / total(seen), 12)
    expect(max).toBe(Math.max(...scores.filter((_, i) => !masked(i))))
  })
  it('does not overflow, does not change when all scores move, and is zero where nothing is seen', () => {
    expect(softmax([1000, 1001]).weights[1]).toBeCloseTo(1 / (1 + Math.exp(-1)), 12)
    expect(softmax(scores.map((s) => s + 5), masked).weights[3]).toBeCloseTo(weights[3], 10) // prettier-ignore
    expect(softmax([1, 2], () => true).weights).toEqual([0, 0])
  })
  it('is sharper without the division', () => {
    expect(unscaled(scores, null, 1 / 8, masked)).toBeGreaterThan(Math.max(...weights))
    expect(unscaled(scores, null, 1, masked)).toBeCloseTo(Math.max(...weights), 12)
  })
})

describe('one cell', () => {
  it('multiplies and adds', () => {
    expect(products([1, 2, 3], [4, 5, -6])).toEqual([4, 10, -18])
    expect(total([4, 10, -18])).toBe(-4)
  })
  it('orders by size', () => {
    expect(bySize([1, -3, 2, 3])).toEqual([1, 3, 2, 0])
    expect(foremost([0.1, 0.5, 0.2, 0.2], 2)).toEqual([1, 2])
    expect(foremost([0.1, 0.5, 0.2, 0.2], 2, 0)).toEqual([0, 1])
    expect(foremost([0.1, 0.5], 5, 0)).toEqual([0, 1])
    expect(foremost([0, 0.5, 0, 0.5, 0], 4)).toEqual([1, 3])
    expect(foremost([0, 0.5, 0, 0.5, 0], 4, 4)).toEqual([1, 3, 4])
  })
  it('gathers values by weight: the columns sum to z', () => {
    const next = random(3)
    const [keys, width] = [4, 3]
    const weights = softmax(Array.from({ length: keys }, next)).weights
    const values = Array.from({ length: keys * width }, next)
    const rows = gathered(weights, values, width, [0, 1, 2, 3])
    for (let j = 0; j < width; j++) {
      let z = 0
      for (let s = 0; s < keys; s++) z += weights[s] * values[s * width + j]
      expect(rows[j] + rows[3 + j] + rows[6 + j] + rows[9 + j]).toBeCloseTo(z, 5)
    }
  })
  it('keeps what is large in a small picture', () => {
    expect(pooled([1, 2, 3, 4], 2, 2, 8).values).toEqual([1, 2, 3, 4])
    expect(Array.from(pooled([0, 1, 0, 0, 0, -5, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3], 4, 4, 2).values)).toEqual([-5, 2, 0, 3])
  })
  it('shares the output among heads', () => {
    expect(headShares([1, 2, 3, 4], [1, 1, 10, 10], 2)).toEqual([3, 70])
  })
  it('knows what float32 can tell apart', () => {
    expect(agrees(1.0000001, 1)).toBe(true)
    expect(agrees(1.001, 1)).toBe(false)
    expect(agrees(0.0005, 0, 100)).toBe(true)
    expect(agrees(-Infinity, -Infinity)).toBe(true)
  })
})

describe('which', () => {
  it('finds the kinds that a model has', () => {
    expect(choices(model).map((each) => [each.stack, each.kind])).toEqual([['encoder', 'self'], ['decoder', 'masked'], ['decoder', 'cross']]) // prettier-ignore
    expect(choices(null)).toEqual([])
    expect(siblings(model, model.parts[1]).map((each) => each.layer)).toEqual([0, 1])
    expect(siblings(model, model.parts[4]).map((each) => each.id)).toEqual(['decoder.layers.0.mixer'])
  })
  it('tells masks apart', () => {
    const sight = { causal: true, real: [true, true, true, false], window: 2 }
    expect([0, 1, 2, 3].map((col) => hidden(sight, 2, col))).toEqual(['window', null, null, 'padding'])
    expect(hidden(sight, 0, 1)).toBe('causal')
    expect(hidden({ causal: false, real: [] }, 0, 5)).toBe(null)
    expect([0, 1].map((col) => hidden({ causal: false, real: [], seen: (r, c) => r === c }, 0, col))).toEqual([null, 'window'])
  })
  it('reads the tensors of a head, shared or not', () => {
    const run = { tensors: [{ name: 'a.0.k', axes: 'B G S K', shape: [1, 2, 5, 8] }, { name: 'a.0.q', axes: 'B H T K', shape: [1, 8, 5, 8] }, { name: 'a.01.k', axes: 'B D', shape: [1, 1] }] } as unknown as Run // prettier-ignore
    const found = recorded(run, part('a.0', 'self-attention', 'encoder', 0))
    expect([...found.keys()]).toEqual(['k', 'q'])
    expect(along(found.get('k'), 'S')).toBe(5)
    expect(along(undefined, 'S')).toBe(0)
    expect(ofHead(found.get('k')!, 5, 8)).toEqual({ g: 1 })
    expect(ofHead(found.get('q')!, 5, 8)).toEqual({ h: 5 })
    expect([0, 3, 4, 7].map((h) => sharedHead(h, 8, 2))).toEqual([0, 0, 1, 1])
  })
  it('knows softmax attention by its tensors', () => {
    expect(isSoftmax(['q', 'k', 'v', 'scores', 'pattern', 'z', 'result'])).toBe(true)
    expect(isSoftmax(['q', 'k', 'v', 'decay', 'scores', 'pattern', 'z', 'result'])).toBe(false)
    expect(isSoftmax(['r', 'k', 'v'])).toBe(false)
  })
  it('describes a head by its habits', () => {
    const before = [1, 0, 0, 1, 0, 0, 0, 1, 0]
    expect(habits(before, 3, 3).before).toBeCloseTo(2 / 3)
    expect(habits(before, 3, 3).entropy).toBe(0)
    expect(habits(new Array(16).fill(0.25), 4, 4).entropy).toBeCloseTo(2)
    expect(habits(before, 3, 3, (row) => row < 2).self).toBeCloseTo(1 / 2)
  })
})
