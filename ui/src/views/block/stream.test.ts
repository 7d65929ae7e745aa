import { describe, expect, it } from 'vitest'

import type { Architecture, Run } from '../../lib/types'
import { ACTIVATIONS, activation, cosine, degrees, folded, largest, normalise, norms, places, quiet, settled, step, strongest, times, window } from './stream'

const info = (name: string, parents: string[]) => ({ name, parents, axes: 'B T D', shape: [1, 3, 4], part: '' })
const part = (id: string, kind: string, taps: string[] = []) => ({ id, kind, stack: 'decoder', layer: 0, taps, weights: { [id + '.weight']: [4] }, parameters: 0 })

function model(order: 'pre' | 'post', tensors: ReturnType<typeof info>[]) {
  const layer = 'decoder.layers.0.'
  const architecture = {
    config: { decoder: { blocks: [{ order, norm: { type: 'rms', eps: 1e-6 } }] } },
    parts: [part(layer + 'mixer', 'self-attention'), part(layer + 'mixer_residual.norm', 'norm', [layer + 'mixer_residual.normed']), part(layer + 'ffn', 'feed-forward'), part(layer + 'ffn_residual.norm', 'norm', [layer + 'ffn_residual.normed'])],
  } as unknown as Architecture
  return { architecture, run: { tensors } as unknown as Run }
}

const L = 'decoder.layers.0.'

describe('the residual stream', () => {
  it('follows the parents through a parallel block', () => {
    const { architecture, run } = model('pre', [
      info('decoder.input', []),
      info(L + 'mixer_residual.normed', ['decoder.input', L + 'mixer_residual.norm.weight']), info(L + 'mixer.result', []),
      info(L + 'mixer_residual.sum', ['decoder.input', L + 'mixer.result']),
      info(L + 'ffn_residual.normed', ['decoder.input', L + 'ffn_residual.norm.weight']), info(L + 'ffn.result', []),
      info(L + 'ffn_residual.sum', [L + 'ffn.result', L + 'mixer_residual.sum']),
    ]) // prettier-ignore
    const found = places(architecture, run, 'decoder')
    expect(found.map((each) => [each.sub, each.before, each.after])).toEqual([
      ['mixer', 'decoder.input', L + 'mixer_residual.sum'],
      ['ffn', L + 'mixer_residual.sum', L + 'ffn_residual.sum'],
    ])
    // Both norms read what came into the block.
    expect(norms(architecture, run, 'decoder').map((each) => each.before)).toEqual([['decoder.input'], ['decoder.input']])
    expect(norms(architecture, run, 'decoder')[0].config).toEqual({ type: 'rms', eps: 1e-6 })
  })

  it('goes on behind the norm where that stands behind', () => {
    const { architecture, run } = model('post', [
      info('decoder.input', []), info(L + 'mixer.result', []), info(L + 'mixer_residual.sum', ['decoder.input', L + 'mixer.result']),
      info(L + 'mixer_residual.normed', [L + 'mixer_residual.sum']),
    ]) // prettier-ignore
    expect(places(architecture, run, 'decoder')).toMatchObject([{ after: L + 'mixer_residual.normed', order: 'post' }])
    expect(places(architecture, run, 'encoder')).toEqual([])
  })

  it('measures how far it is turned', () => {
    expect(degrees(cosine([1, 0], [1, 1]))).toBeCloseTo(45)
    expect(cosine([0, 0], [1, 1])).toBe(0)
    const steps = [step([1, 0], [0, 1], [1, 1], [1, 1]), step([1, 0], [-2, 0], [-1, 0], [-1, 0])]
    expect(strongest(steps)).toBe(1)
    expect(strongest([])).toBe(-1)
    expect(steps[0].added).toBe(1)
  })
})

describe('a norm', () => {
  it('is that of the documents: biased variance, ε inside the root', () => {
    const { mean, variance, y } = normalise([1.28, 1.18, 0.09, 2.05], { type: 'layer', eps: 1e-5 })
    expect(mean).toBeCloseTo(1.15)
    expect(variance).toBeCloseTo(0.488, 3)
    ;[0.19, 0.04, -1.52, 1.29].forEach((each, i) => expect(Math.abs(y[i] - each)).toBeLessThan(0.006))
  })

  it('keeps ε where all are equal, and takes γ and β', () => {
    expect(Array.from(normalise([2, 2], { type: 'layer', eps: 1e-5 }, [3, 3], [1, -1]).y)).toEqual([1, -1])
    const { y, mean } = normalise([3, 4], { type: 'rms', eps: 0 }, [2, 1])
    expect(mean).toBe(0)
    expect(y[0]).toBeCloseTo((2 * 3) / Math.sqrt(12.5))
  })
})

describe('feed-forward', () => {
  it('has the curves of its configuration', () => {
    expect(ACTIVATIONS.relu(-1)).toBe(0)
    expect(ACTIVATIONS.gelu(1)).toBeCloseTo(0.8413447, 6)
    expect(ACTIVATIONS.gelu(-2)).toBeCloseTo(-0.0455003, 6)
    expect(ACTIVATIONS['gelu-tanh'](1)).toBeCloseTo(0.841192, 6)
    expect(ACTIVATIONS.silu(1)).toBeCloseTo(0.7310586, 6)
    expect(ACTIVATIONS['quick-gelu'](1)).toBeCloseTo(0.8457958, 6)
    expect(activation({ type: 'gated', activation: 'silu' })).toEqual({ name: 'silu', gated: true })
    expect(activation({ type: 'channel-mix' }).name).toBe('relu²')
    for (const name of ['relu', 'gelu', 'gelu-tanh', 'silu', 'quick-gelu', 'tanh', 'relu²']) expect(ACTIVATIONS[name](0)).toBeCloseTo(0)
  })

  it('counts what is quiet and names the strongest', () => {
    expect(quiet([0, 0, 1, 0.005])).toEqual({ zero: 0.5, small: 0.75 })
    expect(largest([1, -3, 2], 2)).toEqual([1, 2])
    expect(Array.from(times([1, 2, 3, 4], 2, [1, 1], [10, 0]))).toEqual([13, 7])
  })

  it('folds a long row without losing a number', () => {
    const { values, rows, cols } = folded(Float32Array.from({ length: 100 }, (_, i) => i))
    expect(rows * cols).toBeGreaterThanOrEqual(100)
    expect(values[99]).toBe(99)
    expect(values.length > 100 && values[100]).toBeNaN()
    expect(folded([1, 2, 3, 4])).toMatchObject({ rows: 1, cols: 4 })
    expect(folded(new Float32Array(1024))).toMatchObject({ rows: 16, cols: 64 })
  })
})

describe('the lens', () => {
  it('finds where the answer appears and stays', () => {
    expect(settled([1, 5, 2, 5, 5])).toBe(3)
    expect(settled([5, 5, 5])).toBe(0)
    expect(settled([1])).toBe(0)
  })

  it('shows a window around the focus', () => {
    expect(window(10, 3, 40)).toEqual([0, 10])
    expect(window(100, 99, 40)).toEqual([60, 100])
    expect(window(100, 50, 40)).toEqual([30, 70])
  })
})
