import { describe, expect, it } from 'vitest'

import { base64, centred, cosines, cutOf, inkOf, overHeads, overRows, patchOf, rollout } from './patches'

const config = (more: object = {}) => ({ embed: { type: 'patches', patch_size: [2, 3], channels: 2, class_token: true, mean: null, deviation: null, ...more } })

describe('patches', () => {
  const cut = cutOf(config({ mean: [0, 0.5], deviation: [1, 0.5] }))!
  const pixels = { width: 6, height: 4, data: Array.from({ length: 6 * 4 * 4 }, (_, i) => i) }

  it('is none of a model of texts', () => expect(cutOf({ embed: { type: 'tokens' } })).toBeNull())

  it('without a mean it is a half', () => expect(cutOf(config())).toMatchObject({ mean: [0.5, 0.5], deviation: [0.5, 0.5], classToken: true, patch: [2, 3] }))

  it('are read row by row, one channel behind the other', () => {
    const found = patchOf(pixels, 3, cut)
    const expected: number[] = []
    for (const c of [0, 1]) for (const y of [2, 3]) for (const x of [3, 4, 5]) expected.push((pixels.data[(y * 6 + x) * 4 + c] / 255 - cut.mean[c]) / cut.deviation[c])
    expect(found).toHaveLength(12)
    expected.forEach((value, i) => expect(found[i]).toBeCloseTo(value, 6))
  })
})

describe('likeness of positions', () => {
  it('is the cosine of two rows', () => {
    const found = cosines([1, 0, 0, 2, 3, 3], 3, 2)
    expect(found[1]).toBe(0)
    expect(found[2]).toBeCloseTo(Math.SQRT1_2, 6)
    expect([found[0], found[4], found[8]].every((value) => Math.abs(value - 1) < 1e-6)).toBe(true)
    expect(found[6]).toBe(found[2])
  })
})

describe('attention over layers', () => {
  const random = (seed: number) => () => ((seed = (seed * 16807) % 2147483647) / 2147483647)
  const pattern = (n: number, next: () => number) => {
    const rows = Array.from({ length: n }, () => Array.from({ length: n }, next))
    return rows.flatMap((row) => row.map((value) => value / row.reduce((a, b) => a + b, 0)))
  }

  it('of no layer is the identity; of one, half of it', () => {
    expect(Array.from(rollout([], 2))).toEqual([1, 0, 0, 1])
    expect(Array.from(rollout([[0.5, 0.5, 0, 1]], 2))).toEqual([0.75, 0.25, 0, 1])
  })

  it('of many is their product, later layers on the left; rows sum to 1', () => {
    const [n, next] = [4, random(7)]
    const [a, b] = [pattern(n, next), pattern(n, next)]
    const half = (p: number[]) => p.map((value, i) => 0.5 * value + (i % (n + 1) ? 0 : 0.5))
    const found = rollout([a, b], n)
    for (let i = 0; i < n; i++) {
      for (let j = 0; j < n; j++) {
        let sum = 0
        for (let k = 0; k < n; k++) sum += half(b)[i * n + k] * half(a)[k * n + j]
        expect(found[i * n + j]).toBeCloseTo(sum, 6)
      }
      expect(found.slice(i * n, (i + 1) * n).reduce((x, y) => x + y)).toBeCloseTo(1, 5)
    }
  })

  it('is averaged over heads, and over rows', () => {
    expect(Array.from(overHeads([1, 0, 0, 1, 0, 1, 1, 0], 2, 2))).toEqual([0.5, 0.5, 0.5, 0.5])
    expect(Array.from(overRows([1, 0, 0.5, 0.5], 2))).toEqual([0.75, 0.25])
  })
})

describe('a drawing', () => {
  const ink = Array(100).fill(0)
  ink[23] = 200
  ink[47] = 100

  it('has a size and a centre of mass, or is none', () => {
    const found = inkOf(ink, 10, 10)!
    expect(found.extent).toBe(5)
    expect(found.x).toBeCloseTo((2 * 3.5 + 7.5) / 3, 9)
    expect(found.y).toBeCloseTo((2 * 2.5 + 4.5) / 3, 9)
    expect(inkOf(Array(100).fill(3), 10, 10)).toBeNull()
  })

  it('is put in the middle, its longer side as long as it is to be', () => {
    const found = inkOf(ink, 10, 10)!
    const [scale, x, y] = centred(found, 28)
    expect(scale * found.extent).toBeCloseTo(20, 9)
    expect([scale * found.x + x, scale * found.y + y]).toEqual([14, 14])
  })

  it('goes as base64', () => expect(base64(new Uint8Array(Array.from({ length: 9000 }, (_, i) => i % 256)))).toBe(Buffer.from(Array.from({ length: 9000 }, (_, i) => i % 256)).toString('base64')))
})
