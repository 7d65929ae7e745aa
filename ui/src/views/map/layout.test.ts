import { describe, expect, it } from 'vitest'

import type { Architecture, Edge, Part, PartKind } from '../../lib/types'
import { bend, columns, layout, shares, type Box } from './layout'

/** A model as the server describes it, pre-norm or post-norm. */
function model(layers: { encoder?: number; decoder?: number }, order: 'pre' | 'post' = 'pre'): Architecture {
  const parts: Part[] = []
  const edges: Edge[] = []
  const add = (id: string, kind: PartKind, stack: Part['stack'], layer: number | null, parameters = 1) => {
    parts.push({ id, kind, stack, layer, taps: [], weights: {}, parameters, heads: kind.includes('attention') ? 4 : undefined })
    return id
  }
  const edge = (from: string, to: string, kind: Edge['kind'] = 'data') => edges.push({ from, to, kind, shape: 'S × 8' })
  let memory = ''
  for (const stack of ['encoder', 'decoder'] as const) {
    const count = layers[stack]
    if (count === undefined) continue
    const embedded = add(`${stack}.embed`, 'embedding', stack, null)
    let last = add(`${stack}.input`, 'add', stack, null)
    edge(embedded, last)
    parts.splice(-1, 0, { id: `${stack}.position`, kind: 'position', stack, layer: null, taps: [], weights: {}, parameters: 0 })
    edge(`${stack}.position`, last)
    for (let layer = 0; layer < count; layer++)
      for (const kind of ['self-attention', ...(stack === 'decoder' && layers.encoder !== undefined ? ['cross-attention'] : []), 'feed-forward'] as PartKind[]) {
        const id = `${stack}.${layer}.${kind}`
        const before = last
        if (order === 'pre') edge(last, (last = add(id + '.norm', 'norm', stack, layer)))
        add(id, kind, stack, layer, 100)
        edge(last, id)
        if (kind === 'cross-attention') edge(memory, id, 'memory')
        const sum = add(id + '.add', 'add', stack, layer, 0)
        edge(id, sum)
        edge(before, sum, 'residual')
        last = sum
        if (order === 'post') edge(last, (last = add(id + '.norm', 'norm', stack, layer)))
      }
    if (stack === 'encoder') memory = last
    else edge(last, add('head', 'head', null, null))
  }
  return { name: 'm', kind: 'encoder-decoder', input: 'text', config: {}, parameters: 0, vocab_size: 9, tree: null as never, parts, edges }
}

const overlap = (a: Box, b: Box) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height
const all = () => true
const none = () => false
const first = (_: unknown, layer: number) => layer === 0

describe.each([['pre'], ['post']] as const)('the map, %s-norm', (order) => {
  describe.each([[{ encoder: 3, decoder: 2 }], [{ encoder: 2 }], [{ decoder: 12 }], [{ decoder: 40 }]])('of %j', (layers) => {
    const architecture = model(layers, order)

    it.each([['all open', all], ['folded', none], ['one open', first]] as const)('%s: nothing overlaps, all is inside, data rises', (_, open) => {
      for (const narrow of [false, true]) {
        const map = layout(architecture, { open, narrow })
        map.boxes.forEach((a, i) => map.boxes.slice(i + 1).forEach((b) => expect(overlap(a, b), `${a.part.id} ${b.part.id}`).toBe(false)))
        map.plates.forEach((a, i) => map.plates.slice(i + 1).forEach((b) => expect(overlap(a as never, b as never)).toBe(false)))
        for (const box of [...map.boxes, ...map.plates]) {
          expect(box.x).toBeGreaterThanOrEqual(0)
          expect(box.y).toBeGreaterThanOrEqual(-0.01)
          expect(box.x + box.width).toBeLessThanOrEqual(map.width)
          expect(box.y + box.height).toBeLessThanOrEqual(map.height + 0.01)
        }
        const y = (id: string) => map.boxes.find((box) => box.part.id === id)?.y
        for (const edge of architecture.edges) {
          const [from, to] = [y(edge.from), y(edge.to)]
          const same = architecture.parts.find((p) => p.id === edge.from)!.stack === architecture.parts.find((p) => p.id === edge.to)!.stack
          const aside = architecture.parts.find((p) => p.id === edge.from)!.kind === 'position'
          if (from !== undefined && to !== undefined && same && !aside) expect(from).toBeGreaterThan(to)
        }
      }
    })

    it('draws every edge when all is open, and no stray number', () => {
      const map = layout(architecture, { open: all })
      expect(map.wires).toHaveLength(architecture.edges.length)
      for (const wire of map.wires) expect(wire.path).not.toMatch(/NaN|undefined|Infinity/)
      expect(map.boxes).toHaveLength(architecture.parts.length)
    })

    it('keeps the memory edge to every decoder layer when folded', () => {
      const crosses = architecture.parts.filter((part) => part.kind === 'cross-attention').length
      expect(layout(architecture, { open: none }).memory).toHaveLength(crosses)
      expect(layout(architecture, { open: all }).memory).toHaveLength(crosses)
    })
  })
})

describe('the parts of a map', () => {
  it('end in the last stack, where they belong to none', () => {
    const found = columns(model({ encoder: 1, decoder: 1 }))
    expect(found.map((each) => each.stack)).toEqual(['encoder', 'decoder'])
    expect(found[1].groups.at(-1)!.parts.at(-1)!.id).toBe('head')
  })

  it('draw a kind that nobody foresaw', () => {
    const architecture = model({ decoder: 1 })
    architecture.parts[2].kind = 'liquid' as PartKind
    expect(layout(architecture, { open: all }).boxes.every((box) => box.height > 0)).toBe(true)
  })

  it('tell where the parameters are', () => {
    const found = shares(model({ encoder: 2, decoder: 1 }))
    expect(found[0]).toEqual({ kind: 'attention', parameters: 400 })
    expect(found.find((each) => each.kind === 'feed-forward')!.parameters).toBe(300)
  })

  it('bend with corners no larger than the pieces', () => {
    expect(bend([[0, 0], [0, 10], [20, 10]])).toBe('M0,0L0,5Q0,10 5,10L20,10') // prettier-ignore
    expect(bend([[0, 0], [0, 0], [5, 0]])).not.toMatch(/NaN/) // prettier-ignore
  })
})
