import { describe, expect, it } from 'vitest'

import { draw, entropy, ranked, reason, shownRanks, softmax, stages, type Filters } from './filters'

const all: Filters = { temperature: 1, topK: 0, topP: 1, minP: 0 }
const sorted = (values: number[]) => Float32Array.from(values).sort().reverse()
const random = (seed: number, size: number) => Array.from({ length: size }, (_, i) => 6 * Math.sin(seed * 12.9898 + i * 78.233 + i * i))

/** The definitions once more, the slow way: −∞ for what is dropped, a softmax after each. */
function oracle(z: number[], { temperature, topK, topP, minP }: Filters): number[] {
  const probabilities = (x: number[]) => { const e = x.map((v) => Math.exp(v - Math.max(...x))); const sum = e.reduce((a, b) => a + b); return e.map((v) => v / sum) } // prettier-ignore
  let x = z.map((v) => v / temperature)
  if (topK) x = x.map((v) => (x.filter((other) => other > v).length < topK ? v : -Infinity))
  const p = probabilities(x)
  if (topP < 1) x = x.map((v, i) => (i === 0 || p.slice(0, i).reduce((a, b) => a + b, 0) < topP ? v : -Infinity))
  if (minP) x = x.map((v) => (Math.exp(v - Math.max(...x)) >= minP ? v : -Infinity))
  return probabilities(x)
}

describe('filters', () => {
  const cases: Partial<Filters>[] = [{}, { temperature: 0.5 }, { temperature: 1.7 }, { topK: 3 }, { topP: 0.9 }, { topP: 0.05 }, { minP: 0.1 }, { temperature: 1.5, topK: 8, topP: 0.8, minP: 0.2 }] // prettier-ignore
  it.each(cases)('are what the definitions say: %j', (part) => {
    for (let seed = 1; seed < 12; seed++) {
      const z = sorted(random(seed, 24))
      const found = stages(z, { ...all, ...part })
      const wanted = oracle([...z], { ...all, ...part })
      wanted.forEach((p, i) => expect(found.final[i]).toBeCloseTo(p, 5))
      expect(wanted.filter((p) => p > 0)).toHaveLength(found.afterMin)
      expect(found.final.reduce((a, b) => a + b)).toBeCloseTo(1, 12)
      expect(found.left).toBeCloseTo(wanted.reduce((a, p, i) => a + (p > 0 ? found.tempered[i] : 0), 0), 12)
    }
  })
  it('keep the token that crosses top-p, and never none', () => {
    const z = sorted([Math.log(0.5), Math.log(0.3), Math.log(0.15), Math.log(0.05)])
    expect(stages(z, { ...all, topP: 0.6 }).afterP).toBe(2)
    expect(stages(z, { ...all, topP: 0.81 }).afterP).toBe(3)
    expect(stages(z, { ...all, topP: 0.01 }).afterP).toBe(1)
    expect([...stages(z, { ...all, topP: 0.6 }).final].map((p) => Number(p.toFixed(4)))).toEqual([0.625, 0.375, 0, 0])
  })
  it('work on what the one before left: top-k first', () => {
    const z = sorted([0.4, 0.3, 0.2, 0.1].map(Math.log))
    expect(stages(z, { ...all, topK: 2, topP: 0.5 }).afterP).toBe(1)
    expect(stages(z, { ...all, topP: 0.5 }).afterP).toBe(2)
  })
  it('keep ties with the k-th', () => expect(stages(sorted([3, 2, 2, 2, 1]), { ...all, topK: 2 }).afterK).toBe(4))
  it('are greedy at temperature 0', () => {
    const found = stages(sorted([1, 3, 2]), { temperature: 0, topK: 2, topP: 0.5, minP: 0 })
    expect([...found.final]).toEqual([1, 0, 0])
    expect(found.plain[0]).toBeLessThan(0.7)
  })
  it('say which one dropped a token', () => {
    const found = stages(sorted([0.4, 0.3, 0.15, 0.1, 0.05].map(Math.log)), { ...all, topK: 4, topP: 0.8, minP: 0.5 })
    expect([0, 1, 2, 3, 4].map((rank) => reason(found, rank))).toEqual([null, null, 'min', 'p', 'k'])
  })
})

describe('softmax', () => {
  it('takes large and missing scores', () => {
    expect([...softmax([1000, 1000])]).toEqual([0.5, 0.5])
    expect([...softmax([0, -Infinity])]).toEqual([1, 0])
  })
  it('has an entropy in bits', () => {
    expect(entropy([0.25, 0.25, 0.25, 0.25])).toBe(2)
    expect(entropy([1, 0])).toBe(0)
  })
})

describe('a draw', () => {
  it('is where the running sum passes the random number', () => {
    expect([0, 0.49, 0.5, 0.79, 0.8, 0.999].map((u) => draw([0.5, 0.3, 0.2], u))).toEqual([0, 0, 1, 1, 2, 2])
  })
  it('never falls on a dropped token', () => expect(draw([0.5, 0.5 - 1e-17, 0, 0], 1 - 1e-18, 2)).toBe(1))
})

describe('ranks', () => {
  it('are largest first, the lower id before its equal', () => expect([...ranked([1, 5, 3, 5])]).toEqual([1, 3, 2, 0]))
  it('hold what was asked for', () => {
    expect(shownRanks(100, 3, [50, 1, -1])).toEqual([0, 1, 2, 50])
    expect(shownRanks(2, 5, [])).toEqual([0, 1])
  })
})
