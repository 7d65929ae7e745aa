import { describe, expect, it } from 'vitest'

import { firstWritten, path, prefixAt, prefixTo } from './force'
import type { BeamNode, Run, Token } from './types'

const token = (id: number): Token => ({ id, piece: String(id), text: String(id), special: false, span: null })
const node = (id: number, parent: number, word: number, forced = false) => ({ id, parent, token: token(word), forced }) as BeamNode
const run = (source: number[], target: number[], labels: number[], nodes: BeamNode[] = [], prefix?: number[]) =>
  ({ request: { model: 'm', prefix }, source: source.map(token), target: target.map(token), labels: labels.map(token), decoding: { nodes } }) as unknown as Run

describe('a forced token', () => {
  it('keeps what was written before it', () => {
    const translated = run([9, 8], [1, 5, 6], [5, 6, 2])
    expect(prefixAt(translated, 0, 7)).toEqual([7])
    expect(prefixAt(translated, 2, 7)).toEqual([5, 6, 7])
  })
  it('leaves a prompt alone', () => {
    const text = run([9, 8], [9, 8, 5], [8, 5, 6])
    expect(firstWritten(text)).toBe(1)
    expect(prefixAt(text, 0, 7)).toBeNull()
    expect(prefixAt(text, 1, 7)).toEqual([7])
    expect(prefixAt(text, 2, 7)).toEqual([5, 7])
  })
  it('does not repeat what the model prescribes', () => {
    const tagged = run([9], [1, 40, 5], [40, 5, 2], [node(0, -1, 40, true), node(1, 0, 5), node(2, 1, 2)])
    expect(prefixAt(tagged, 0, 7)).toBeNull()
    expect(prefixAt(tagged, 2, 7)).toEqual([5, 7])
    expect(prefixTo(tagged, 1, 7)).toEqual([5, 7])
    expect(path(tagged, 2)).toEqual([0, 1, 2])
    expect(path(tagged, -1)).toEqual([])
  })
  it('tells a prefix that was asked for from what is prescribed', () => {
    const asked = run([9], [1, 5, 6], [5, 6, 2], [node(0, -1, 5, true), node(1, 0, 6), node(2, 1, 2)], [5])
    expect(prefixAt(asked, 1, 7)).toEqual([5, 7])
    expect(prefixTo(asked, 0)).toEqual([5])
  })
})
