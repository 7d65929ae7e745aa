import { describe, expect, it } from 'vitest'

import type { Architecture } from '../../lib/types'
import { binary, bucket, columns, dotAt, frequencies, layerNorm, quiet, rotation, schemes, sinusoids, slopes, some, steps, turn } from './encoding'

describe('sinusoids', () => {
  // Values of the package's own table (float32).
  it('are those of the model', () => {
    const own = [0.6569865942, 0.7539022565, 0.6442176700, 0.7648422122, 0.0699428468, 0.9975510239, 0.0069999429, 0.9999755025]
    sinusoids(1, 8, 10000, 'interleaved', 7).forEach((value, i) => expect(value).toBeCloseTo(own[i], 6))
    const halves = [0.6569865942, 0.8004216552, 0.6442176700, 0.2195560932, 0.7539022565, -0.5994374156, 0.7648422122, 0.9755998850]
    sinusoids(1, 8, 100, 'halves', 7).forEach((value, i) => expect(value).toBeCloseTo(halves[i], 6))
  })
  it('turn by the same angle wherever one stands: PE(p + k) = R(k) PE(p)', () => {
    const [d, base] = [16, 10000]
    for (const layout of ['interleaved', 'halves'] as const) {
      const table = sinusoids(40, d, base, layout)
      const at = (p: number, i: number) => columns(i, d, layout).map((column) => table[p * d + column]) as [number, number]
      for (const [p, k, i] of [[0, 1, 0], [5, 7, 1], [11, 20, 3], [3, 30, 7]]) {
        const [sine, cosine] = turn(rotation(k, frequencies(d, base)[i]), at(p, i))
        expect(sine).toBeCloseTo(at(p + k, i)[0], 5)
        expect(cosine).toBeCloseTo(at(p + k, i)[1], 5)
      }
    }
  })
  it('have a product that depends on the distance alone', () => {
    const [d, base] = [32, 10000]
    const table = sinusoids(60, d, base, 'interleaved')
    const dot = (a: number, b: number) => Array.from({ length: d }, (_, i) => table[a * d + i] * table[b * d + i]).reduce((x, y) => x + y)
    for (const p of [0, 9, 31]) expect(dot(p, p + 13)).toBeCloseTo(dotAt(13, frequencies(d, base)), 4)
    expect(dotAt(0, frequencies(d, base))).toBe(16)
  })
  it('are shown from the fastest to the slowest', () => {
    expect(some(128, 5)).toEqual([0, 32, 64, 95, 127])
    expect(some(3, 5)).toEqual([0, 1, 2])
  })
})

describe('distances', () => {
  it('have ALiBi’s slopes', () => {
    expect(slopes(8)).toEqual([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015625, 0.0078125, 0.00390625])
    expect(slopes(6)).toEqual([0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125])
  })
  it('fall into T5’s buckets', () => {
    const places = [-200, -128, -90, -40, -16, -9, -8, -7, -1, 0, 1, 7, 8, 9, 16, 40, 90, 128, 200]
    const both = { buckets: 32, maxDistance: 128, bidirectional: true }
    expect(places.map((place) => bucket(place, both))).toEqual([15, 15, 14, 12, 10, 8, 8, 7, 1, 0, 17, 23, 24, 24, 26, 28, 30, 31, 31])
    expect(places.map((place) => bucket(place, { ...both, bidirectional: false }))).toEqual([31, 31, 29, 23, 16, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
  })
})

describe('rejected', () => {
  it('binary jumps where sinusoids walk', () => {
    expect(binary(6, 4)).toEqual([0, 1, 1, 0])
    const jumps = steps(Array.from({ length: 16 }, (_, p) => binary(p, 4)))
    expect(jumps[7]).toBe(2) // 0111 → 1000
    expect(jumps[0]).toBe(1)
    const d = 16
    const table = sinusoids(16, d, 10000, 'interleaved')
    const walk = steps(Array.from({ length: 16 }, (_, p) => Array.from(table.subarray(p * d, (p + 1) * d))))
    for (const each of walk) expect(each).toBeCloseTo(walk[0], 5)
  })
})

describe('schemes', () => {
  const model = (encoder: object) => ({ parts: [{ stack: 'encoder', weights: { 'encoder.position.weight': [8, 4], 'encoder.bias.weight': [32, 4] } }], config: { d_model: 64, embed: { type: 'tokens' }, encoder } }) as unknown as Architecture
  const attention = { type: 'attention', n_heads: 4 }
  it('are read from the configuration', () => {
    expect(schemes(model({ position: { type: 'sinusoidal', base: 10000, layout: 'halves', max_len: 9 }, blocks: [{ mixer: attention }] }), 'encoder')[0]).toMatchObject({ kind: 'sinusoidal', d: 64, layout: 'halves', first: 0 })
    expect(schemes(model({ position: { type: 'learned', max_len: 8, first: 2 }, blocks: [{ mixer: attention }] }), 'encoder')[0]).toMatchObject({ kind: 'learned', first: 2, matrix: 'encoder.position.weight' })
    expect(schemes(model({ blocks: [{ mixer: { ...attention, rotary: { base: 10000, fraction: 0.5, layout: 'halves' } } }] }), 'encoder')[0]).toMatchObject({ kind: 'rotary', d: 8, head: 16 })
    expect(schemes(model({ bias: { type: 't5', buckets: 32, max_distance: 128, bidirectional: true }, blocks: [{ mixer: attention }] }), 'encoder')[0]).toMatchObject({ kind: 't5', heads: 4, matrix: 'encoder.bias.weight' })
    expect(schemes(model({ bias: { type: 'alibi' }, blocks: [{ mixer: attention }] }), 'encoder').map((each) => each.kind)).toEqual(['alibi'])
    expect(schemes(model({ blocks: [{ mixer: attention }] }), 'encoder')).toEqual([{ kind: 'none' }])
    expect(schemes(model({ blocks: [{ mixer: { type: 'lstm' } }] }), 'encoder')).toEqual([{ kind: 'recurrent' }])
    expect(schemes(model({}), 'decoder')).toEqual([])
  })
})

describe('scale', () => {
  it('is not set by one loud value', () => {
    expect(quiet([...new Array(99).fill(-2), 500])).toEqual([-2, 2])
    expect(quiet([])).toEqual([-1, 1])
  })
})

describe('norm', () => {
  it('gives mean 0 and variance 1 before gain and offset', () => {
    const out = layerNorm([1, 2, 3, 6], [1, 1, 1, 1], null, 0)
    expect(out.reduce((a, b) => a + b)).toBeCloseTo(0, 6)
    expect(out.reduce((a, b) => a + b * b) / 4).not.toBeNaN()
    expect(Array.from(out).reduce((a, b) => a + b * b, 0) / 4).toBeCloseTo(1, 6)
  })
})
