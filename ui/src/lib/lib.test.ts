import { describe, expect, it } from 'vitest'

import { canonical, key } from './api'
import { concepts, search } from './concepts'
import { bytes, count, exact, fixed, joins, percent, short, visible } from './format'
import { parse } from './formula'
import { links } from './links'
import { at, extent, rowOf, slice, type Tensor } from './tensor'
import { fit, textWidth } from './text'

describe('tensors', () => {
  const shape = [2, 3, 4]
  const tensor: Tensor = { name: 'x', axes: 'HTS', shape, data: Float32Array.from({ length: 24 }, (_, i) => i * 1.5) }
  const naive = (h: number, t: number, s: number) => tensor.data[(h * 3 + t) * 4 + s]

  it('slice as naive loops do, along any axes', () => {
    for (let h = 0; h < 2; h++) {
      const part = slice(tensor, { h })
      expect([part.axes, part.shape]).toEqual(['TS', [3, 4]])
      for (let t = 0; t < 3; t++) for (let s = 0; s < 4; s++) expect(at(part, t, s)).toBe(naive(h, t, s))
      for (let s = 0; s < 4; s++) expect([...slice(tensor, { s, h }).data]).toEqual([0, 1, 2].map((t) => naive(h, t, s)))
      for (let t = 0; t < 3; t++) expect([...slice(tensor, { H: h, T: t }).data]).toEqual([...rowOf(part, t)])
    }
  })

  it('refuse what is outside, and pass over axes that they lack', () => {
    expect(() => slice(tensor, { t: 3 })).toThrow(/t = 3/)
    expect(slice(tensor, { q: 9 }).data).toBe(tensor.data)
  })

  it('ignore masked cells in their extent', () => {
    expect(extent([1, -Infinity, NaN, 3])).toEqual([1, 3])
    expect(extent([-Infinity])).toEqual([0, 0])
  })
})

describe('numbers', () => {
  it.each([[0, '0'], [0.0314159, '0.031'], [-1.005, '−1.00'], [123.4, '123'], [-1e-7, '−1.0e−7'], [-Infinity, '−∞'], [1e6, '1.0e6']])('%d is %s in short', (value, text) => expect(short(value)).toBe(text)) // prettier-ignore
  it('are exact to a float32, and no longer than that', () => {
    expect([0.1, 0.5, 1 / 3].map((v) => exact(Math.fround(v)))).toEqual(['0.1', '0.5', '0.33333334'])
    for (let i = 0; i < 200; i++) {
      const value = Math.fround((Math.random() - 0.5) * 10 ** (Math.random() * 20 - 10))
      expect(Math.fround(Number(exact(value).replaceAll('−', '-')))).toBe(value)
    }
  })
  it('never write a minus before nothing', () => expect([fixed(-0.001), fixed(-0.006), fixed(0)]).toEqual(['0.00', '−0.01', '0.00']))
  it('count', () => expect([789504, 9158144, 175e9, 332, 1000].map(count)).toEqual(['790 k', '9.16 M', '175 B', '332', '1 k']))
  it('weigh', () => expect([12, 2048, 5 * 2 ** 20].map(bytes)).toEqual(['12 B', '2.0 KiB', '5.0 MiB']))
  it('are parts of a hundred', () => expect([1, 0, 0.0471, 0.00001, 0.9999].map(percent)).toEqual(['100%', '0%', '4.7%', '<0.1%', '100%']))
})

describe('tokens', () => {
  const tokens = (...pieces: string[]) => pieces.map((piece) => ({ piece, text: piece.replace('▁', ' ').replace('##', ''), special: piece.startsWith('<') }))
  const joined = (...pieces: string[]) => tokens(...pieces).map((_, i) => joins(tokens(...pieces), i))

  it('are never invisible', () => expect([' love', ' ', '', '\n'].map(visible)).toEqual(['love', '␣', '∅', '∅'].map((t, i) => (i === 3 ? visible('\n') : t))))
  it('join where a word goes on', () => {
    expect(joined('▁pro', 'cess', 'ing', '.')).toEqual([false, true, true, false])
    expect(joined('un', '##believ', '##able')).toEqual([false, true, true])
    expect(joined('<s>', '▁我', '爱', '自然')).toEqual([false, false, false, false])
    expect(joined('I', 'love')).toEqual([false, false])
  })
  it('fit into their room', () => {
    for (const text of ['unbelievable', '自然语言处理', 'a', '🐉🐉🐉🐉🐉']) for (const width of [20, 40, 60]) expect(textWidth(fit(text, width))).toBeLessThanOrEqual(Math.max(width, textWidth([...text][0] + '…')))
    expect(fit('short', 300)).toBe('short')
  })
})

describe('links', () => {
  it('are all that weigh enough, heaviest first, or those of one row', () => {
    const [rows, cols] = [5, 7]
    const weights = Float32Array.from({ length: rows * cols }, () => Math.random())
    const all = links(weights, rows, cols, { least: 0.3 })
    expect(all.length).toBe([...weights].filter((v) => v >= 0.3).length)
    expect(all.every((each, i) => weights[each.row * cols + each.col] === each.weight && (i === 0 || all[i - 1].weight >= each.weight))).toBe(true)
    expect(links(weights, rows, cols, { least: 0, only: 2 }).map((each) => each.row)).toEqual(Array(cols).fill(2))
    expect(links(weights, rows, cols, { least: 0, most: 4 })).toHaveLength(4)
  })
})

describe('formulas', () => {
  const text = (nodes: ReturnType<typeof parse>): string =>
    nodes.map((n) => (n.kind === 'frac' ? `(${text(n.top)}/${text(n.bottom)})` : n.kind === 'sqrt' ? `√(${text(n.inner)})` : n.kind === 'scripts' ? `${text(n.base)}[${text(n.sub ?? [])}|${text(n.sup ?? [])}]` : n.text)).join('')

  it('are read as written', () => {
    expect(text(parse('softmax(\\frac{Q K^T}{\\sqrt{d_k}}) V'))).toBe('softmax((Q K[|T]/√(d[k|]))) V')
    expect(text(parse('x_t^{2i/d} + h_{t−1}'))).toBe('x[t|2i/d] + h[t−1|]')
  })
  it('tell what is wrong', () => {
    expect(() => parse('a_{b')).toThrow(/missing/)
    expect(() => parse('a}')).toThrow(/too many/)
  })
})

describe('the index', () => {
  it.each(['token', 'embedding', 'position', 'query', 'scaling', 'softmax', 'heads', 'feed-forward', 'residual', 'norm', 'mask', 'cross', 'autoreg', 'logit', 'temperature', 'teacher', 'cache', 'beam',
    '词元', '嵌入', '位置', '查询', '缩放', '多头', '前馈', '残差', '归一化', '掩码', '交叉', '自回归', '温度', '教师', '缓存', '束搜索', '对齐', '损失'])('knows %s', (word) => expect(search(word).length).toBeGreaterThan(0)) // prettier-ignore
  it('names each thing once', () => expect(new Set(concepts.map((each) => each.en)).size).toBe(concepts.length))
})

describe('keys of a saved page', () => {
  it('do not depend on the order of fields, nor on what is undefined', () => {
    expect(canonical({ b: 1, a: undefined, c: [2] })).toBe('{"b":1,"c":[2]}')
    expect(key('POST', '/api/runs', { text: 'x', model: 'm' })).toBe('POST /api/runs {"model":"m","text":"x"}')
  })
})
