import { describe, expect, it } from 'vitest'

import { DEFAULTS, fromHash, toHash, type Selection } from './hash'

const state = (changes: Partial<Selection>): Selection => ({ ...DEFAULTS, prefix: [], options: {}, ...changes })

describe('the address', () => {
  it.each<Partial<Selection>>([
    {},
    { view: 'attention', layer: 3, head: 7, stack: 'decoder', kind: 'cross', source: 4, step: 2, col: 5 },
    { text: '我爱 “NLP” & 100%? #=+🐉', from: 'zh', to: 'en', lang: 'zh', theme: 'dark' },
    { text: 'a\nb\tc', target: 'x=y&z', compare: '?#', prefix: [1, 4790, 2], beam: 1, penalty: 0.6, pad: 3 },
    { options: { temperature: '0.7', 'a&b': 'c=d' } },
  ])('comes back as it went: %j', (changes) => {
    expect(fromHash(toHash(state(changes)))).toEqual(state(changes))
  })

  it('is short where nothing differs', () => expect(toHash(state({}))).toBe('#map'))

  it.each(['', '#', '#?', '#map?', '#%%%', '#map?layer=x&head=1.5&head=&theme=pink&nonsense=1&prefix=,a,7', '#a/b?__proto__=1&view=x&options=y'])('survives %j', (hash) => {
    const read = fromHash(hash)
    expect(read.layer).toBe(0)
    expect(read.theme).toBe('auto')
    expect(Object.keys(read)).toEqual(Object.keys(DEFAULTS))
  })

  it('does not share what it read', () => {
    fromHash('#map').prefix.push(1)
    fromHash('#map').options.a = 'b'
    expect(fromHash('#map')).toEqual(state({}))
  })
})
