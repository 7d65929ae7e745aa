import { describe, expect, it } from 'vitest'

import type { Architecture, BeamNode, Decoding, Token } from '../../lib/types'
import { rows } from './cache'
import { branch, layout, lengthPenalty, running, WIDE } from './tree'

const token: Token = { id: 1, piece: 'a', text: 'a', special: false, span: null }
const node = (id: number, parent: number, step: number, sum: number, fate: BeamNode['fate']): BeamNode => ({ id, parent, step, sum, fate, token, logprob: -1, score: sum, forced: false }) // prettier-ignore
const decoding = (nodes: BeamNode[]): Decoding => ({ beam_size: 2, length_penalty: 1, nodes, steps: [], hypotheses: [] })

const small = decoding([
  node(0, -1, 0, -2, 'kept'), node(1, -1, 0, -3, 'best'), node(2, -1, 0, -9, 'dropped'),
  node(3, 0, 1, -4, 'kept'), node(4, 1, 1, -5, 'best'), node(5, 0, 1, -3.5, 'finished'), node(6, 1, 1, -8, 'dropped'), node(7, 0, 1, -7, 'dropped'),
]) // prettier-ignore

describe('the tree', () => {
  it('keeps the chosen path on the first line, losers last and the best of them first', () => {
    const found = layout(small)
    expect(found.columns.map((column) => column.map((each) => each.node.id))).toEqual([[1, 0, 2], [4, 5, 3, 7, 6]])
    expect([...found.at.values()].filter((each) => each.node.fate === 'best').every((each) => each.y === 0)).toBe(true)
  })
  it('puts every node in its step’s column, none upon another', () => {
    const found = layout(small)
    for (const each of found.at.values()) expect(each.x).toBe((each.node.step + 1) * WIDE)
    const places = [...found.at.values()].map((each) => `${each.x},${each.y}`)
    expect(new Set(places).size).toBe(small.nodes.length)
    expect(Math.max(...[...found.at.values()].map((each) => each.y))).toBeLessThan(found.height)
  })
  it('leaves losers out if asked to', () => expect(layout(small, false).at.size).toBe(5))
  it('leaves the first line free where the chosen path has ended', () => {
    const found = layout(decoding([node(0, -1, 0, -1, 'best'), node(1, -1, 0, -2, 'kept'), node(2, 1, 1, -3, 'kept')]))
    expect(found.at.get(2)!.line).toBe(1)
  })
  it('takes a long search', () => {
    const many = Array.from({ length: 4000 }, (_, i) => node(i, i - 8, Math.floor(i / 8), -i, i % 8 === 0 ? 'best' : 'kept'))
    expect(layout(decoding(many)).columns).toHaveLength(500)
  })
  it('joins the middle of two boxes', () => expect(branch({ x: 0, y: 0 }, { x: WIDE, y: 46 })).toMatch(/^M120,18.5C132,18.5 132,64.5 144,64.5$/))
})

describe('numbers', () => {
  it('divide by the length as Wu et al. do', () => {
    expect(lengthPenalty(1, 1)).toBe(1)
    expect(lengthPenalty(7, 1)).toBe(2)
    expect(lengthPenalty(7, 0)).toBe(1)
    expect(lengthPenalty(19, 0.5)).toBe(2)
  })
  it('run up', () => expect(running([1, 2, 3])).toEqual([1, 3, 6]))
})

describe('the cache', () => {
  it('has a row for each mixer of the decoder', () => {
    const part = (stack: string, layer: number | null, kind: string) => ({ stack, layer, kind, id: `${stack}.${layer}.${kind}` })
    const parts = [part('encoder', 0, 'self-attention'), part('decoder', 0, 'self-attention'), part('decoder', 0, 'cross-attention'), part('decoder', 0, 'norm'), part('decoder', 1, 'retention'), part('decoder', null, 'norm')] // prettier-ignore
    expect(rows({ parts } as unknown as Architecture).map((each) => each.kind)).toEqual(['tokens', 'source', 'state'])
  })
})
