import { describe, expect, it } from 'vitest'

import type { Tensor } from '../../lib/tensor'
import type { Architecture, Run } from '../../lib/types'
import { leaves, likeliest, normOf, product, softmaxRows, turned } from './arithmetic'
import { needed, steps, type Book } from './steps'

describe('arithmetic', () => {
  it('multiplies, adds a row, turns and slices', () => {
    expect(Array.from(product([1, 2, 3, 4], [1, 0, 2, 1], 2, 2, 2, [10, 0]))).toEqual([15, 2, 21, 4])
    expect(Array.from(product([1, 2], [1, 2], 1, 2, 1, null, 0.5))).toEqual([2.5])
    expect(Array.from(turned([1, 2, 3, 4, 5, 6], 3, 2))).toEqual([1, 3, 5, 2, 4, 6])
    expect(Array.from(turned([1, 2, 3, 4, 5, 6], 3, 2, 1, 3))).toEqual([3, 5, 4, 6])
  })

  it('gives the shares of the documents, and nothing to what is masked', () => {
    const found = softmaxRows([0.48, 0.82, -Infinity], 1, 3)
    expect(found[0]).toBeCloseTo(0.42, 2)
    expect(found[2]).toBe(0)
    expect(Array.from(softmaxRows([-Infinity, -Infinity], 1, 2))).toEqual([0, 0])
    expect(likeliest([0.1, 0.9, 0.7, 0.3], 2, 2)).toEqual([1, 0])
  })

  it('takes the biased variance', () => {
    const { mean, variance } = normOf([0, 1.28, 1.18, 0.09, 2.05], 1, 4, 1e-5, false)
    expect(mean).toBeCloseTo(1.15)
    expect(variance).toBeCloseTo(0.488, 3)
    expect(normOf([3, 4], 0, 2, 0, true)).toMatchObject({ mean: 0, variance: 12.5 })
  })
})

describe('worked examples', () => {
  it('agree within the tolerance, number by number', () => {
    expect(leaves({ a: [1, 2] }, { a: [1.004, 2.1] }, 0.006).map((each) => [each.path, each.fine])).toEqual([['a · 0', true], ['a · 1', false]])
    expect(leaves('x', 'x', 0)[0].fine).toBe(true)
    expect(leaves([1], [1, 2], 0).at(-1)).toMatchObject({ fine: false })
    expect(leaves([1, 2], [1], 0).at(-1)).toMatchObject({ fine: false })
  })
})

describe('a pass by hand', () => {
  // A decoder of one layer, width 2, one head, post-norm, whose tensors are computed here in the plainest way.
  const d = 2
  const E = [0.5, -0.25, 1, 0.75, -0.5, 0.25]
  const I = [1, 0, 0, 1]
  const ids = [1, 2]
  const x = ids.flatMap((id) => [E[2 * id], E[2 * id + 1]])
  const scores = product(x, turned(x, 2, 2), 2, 2, 2, null, Math.SQRT1_2)
  const pattern = softmaxRows([scores[0], -Infinity, scores[2], scores[3]], 2, 2)
  const z = product(pattern, x, 2, 2, 2)
  const sum = x.map((each, i) => each + z[i])
  const normed = sum.map((each, i) => { const { mean, root } = normOf(sum, 2 * Math.floor(i / 2), 2, 1e-5, false); return (each - mean) / root }) // prettier-ignore
  const L = 'decoder.layers.0.'
  const values: Record<string, [ArrayLike<number>, number[], string[], string]> = {
    'decoder.embedded': [x, [2, 2], ['embed.weight'], 'embed'], 'decoder.input': [x, [2, 2], ['decoder.embedded'], 'embed'],
    [L + 'mixer.q']: [x, [1, 2, 2], ['decoder.input'], L + 'mixer'], [L + 'mixer.k']: [x, [1, 2, 2], ['decoder.input'], L + 'mixer'], [L + 'mixer.v']: [x, [1, 2, 2], ['decoder.input'], L + 'mixer'],
    [L + 'mixer.scores']: [scores, [1, 2, 2], [], L + 'mixer'], [L + 'mixer.pattern']: [pattern, [1, 2, 2], [], L + 'mixer'], [L + 'mixer.z']: [z, [1, 2, 2], [], L + 'mixer'], [L + 'mixer.result']: [z, [2, 2], [], L + 'mixer'],
    [L + 'mixer_residual.sum']: [sum, [2, 2], ['decoder.input', L + 'mixer.result'], L + 'mixer_residual'],
    [L + 'mixer_residual.normed']: [normed, [2, 2], [L + 'mixer_residual.sum'], L + 'mixer_residual.norm'],
    'decoder.output': [normed, [2, 2], [L + 'mixer_residual.normed'], L + 'mixer_residual.norm'],
    'head.logits': [product(normed, turned(E, 3, 2), 2, 2, 3), [2, 3], ['decoder.output'], 'head'],
  } // prettier-ignore
  const weights = { [L + 'mixer.query.weight']: I, [L + 'mixer.key.weight']: I, [L + 'mixer.value.weight']: I, [L + 'mixer.out.weight']: I }
  const part = (id: string, kind: string, layer: number | null, own: object = {}) => ({ id, kind, stack: id === 'head' ? null : 'decoder', layer, taps: [], weights: Object.fromEntries(Object.keys(own).map((name) => [name, []])), parameters: 0, heads: 1, causal: kind === 'self-attention' })
  const architecture = {
    config: { d_model: d, embed: { scale: false }, tie: true, head: { type: 'lm' }, decoder: { position: null, blocks: [{ order: 'post', norm: { type: 'layer', eps: 1e-5 }, mixer: { type: 'attention' } }] } },
    parts: [part('embed', 'embedding', null, { 'embed.weight': 1 }), part(L + 'mixer', 'self-attention', 0, weights), part(L + 'mixer_residual', 'add', 0), part(L + 'mixer_residual.norm', 'norm', 0), part('head', 'head', null, { 'embed.weight': 1 })],
  } as unknown as Architecture
  const token = (id: number) => ({ id, text: `t${id}`, piece: `t${id}`, special: false, span: null })
  const run = { source: [], source_mask: [], target: ids.map(token), labels: [], tensors: Object.entries(values).map(([name, [, shape, parents, home]]) => ({ name, shape, parents, part: home, axes: '' })) } as unknown as Run
  const tensorOf = (name: string, data: ArrayLike<number>, shape: number[]): Tensor => ({ name, axes: '', shape, data: Float32Array.from(data) })
  const book: Book = {
    architecture, run, layer: 5, head: 0,
    tensors: new Map(Object.entries(values).map(([name, [data, shape]]) => [name, tensorOf(name, data, shape)])),
    weights: new Map([...Object.entries(weights).map(([name, data]): [string, Tensor] => [name, tensorOf(name, data, [2, 2])]), ['embed.weight', tensorOf('embed.weight', E, [3, 2])]]),
  } // prettier-ignore

  it('asks for the tensors and weights of its layer', () => {
    const asked = needed(architecture, run, 5)
    expect(asked.tensors.sort()).toEqual(Object.keys(values).sort())
    expect(asked.weights).toContain('embed.weight')
  })

  it('computes every step anew and comes to the recorded numbers', () => {
    const all = steps(book)
    expect(all.map((each) => each.kind)).toEqual(['embed', 'q', 'k', 'v', 'scores', 'mask', 'softmax', 'gather', 'join', 'residual', 'norm', 'logits', 'probabilities'])
    for (const each of all) if (each.computed) Array.from(each.computed).forEach((value, i) => expect(Math.abs(value - each.result.values[i]), `${each.id} ${i}`).toBeLessThan(1e-5))
    expect(all.filter((each) => each.computed).length).toBe(11)
  })

  it('tells how a number comes about', () => {
    const of = (kind: string) => steps(book).find((each) => each.kind === kind)!
    expect(of('q').explain(0, 0, 2)).toEqual(['1.00 × 1.00 + 0.75 × 0.00 = 1.00'])
    expect(of('mask').explain(0, 1, 2)[0]).toContain('→ −∞')
    expect(of('softmax').explain(0, 1, 2)).toEqual(['e^(−∞) = 0'])
    expect(of('residual').explain(1, 0, 2)[0]).toContain(' + ')
    expect(of('norm').explain(0, 0, 2)).toHaveLength(4)
  })
})
