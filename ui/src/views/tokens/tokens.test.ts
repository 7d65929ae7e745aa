import { describe, expect, it } from 'vitest'

import type { Token } from '../../lib/types'
import { cosine, groups, inChinese, level, merges, norm, placed, role } from './pieces'

const token = (piece: string, span: [number, number] | null, text = piece): Token => ({ id: 7, piece, text, special: !span, span })

describe('text above pieces', () => {
  it('gives every piece its characters, and names what stands between', () => {
    const all = groups([token('<s>', null), token('I', [0, 1]), token('like', [2, 6]), token('##s', [6, 7])], 'I likes')
    expect(all.map((each) => each.characters.join(''))).toEqual(['', 'I', 'like', 's'])
    expect(all.map((each) => each.gap)).toEqual(['', '', ' ', ''])
  })
  it('counts characters as a reader does, and puts bytes of one under it', () => {
    const all = groups([token('爱', [0, 1]), token('<0xF0>', [1, 2]), token('<0x9F>', [1, 2]), token('k', [2, 3])], '爱😀k')
    expect(all.map((each) => each.characters.join(''))).toEqual(['爱', '😀', 'k'])
    expect(all[1].tokens).toEqual([1, 2])
  })
  it('spells what the text lacks from the tokens', () => {
    const all = groups([token('▁On', [0, 2], ' On'), token('▁go', [2, 5], ' go')], 'On')
    expect(all.map((each) => each.characters.join(''))).toEqual(['On', ' go'])
  })
  it('loses no token and stays within the room', () => {
    const tokens = Array.from({ length: 30 }, (_, i) => token('piece' + i, [i, i + 1]))
    const lines = placed(groups(tokens, 'x'.repeat(30)), tokens, 300)
    expect(lines.flatMap((each) => each.parts.map((part) => part.index))).toEqual(tokens.map((_, i) => i))
    for (const each of lines) {
      expect(each.x + each.width).toBeLessThanOrEqual(300)
      const last = each.parts.at(-1)!
      expect(last.x + last.width).toBeLessThanOrEqual(each.x + each.width + 0.01)
    }
    expect(Math.max(...lines.map((each) => each.line))).toBeGreaterThan(2)
  })
})

describe('merges', () => {
  const steps = [
    { pieces: ['l', 'o', 'v', 'e'] },
    { pieces: ['l', 'o', 've'], merged: ['v', 'e'] as [string, string], rank: 40 },
    { pieces: ['lo', 've'], merged: ['l', 'o'] as [string, string], rank: 240 },
    { pieces: ['love'], merged: ['lo', 've'] as [string, string], rank: 548 },
  ]
  it('become a tree whose root covers the word', () => {
    const { leaves, nodes } = merges(steps)!
    expect(leaves).toHaveLength(4)
    expect(nodes.map((each) => [each.piece, each.from, each.to, each.step])).toEqual([['ve', 2, 4, 1], ['lo', 0, 2, 2], ['love', 0, 4, 3]]) // prettier-ignore
    expect(level(nodes[2])).toBe(2)
    expect(nodes[2].children.map((each) => each.piece)).toEqual(['lo', 've'])
  })
  it('find the right one of two equal pairs', () => {
    const twice = merges([{ pieces: ['a', 'b', 'c', 'a', 'b'] }, { pieces: ['a', 'b', 'c', 'ab'], merged: ['a', 'b'] }])!
    expect(twice.nodes[0].from).toBe(3)
  })
  it('are none where pieces are matched instead', () => {
    expect(merges([{ pieces: ['un', 'believable'] }, { pieces: ['un', '##b', 'elievable'] }])).toBeNull()
    expect(merges([])).toBeNull()
  })
})

describe('vectors', () => {
  it('are alike by their angle', () => {
    expect(cosine([1, 0], [0, 2])).toBe(0)
    expect(cosine([1, 2], [2, 4])).toBeCloseTo(1, 12)
    expect(cosine([1, 2], [-1, -2])).toBeCloseTo(-1, 12)
    expect(cosine([0, 0], [1, 2])).toBe(0)
    expect(norm([3, 4])).toBe(5)
  })
})

describe('words', () => {
  it('tells notes in Chinese', () => {
    expect(inChinese('longest match: un')).toBe('最长匹配：un')
    expect(inChinese('▁love: -8.30, in all -12.10')).toBe('▁love：-8.30，合计 -12.10')
    expect(inChinese('something new')).toBe('something new')
  })
  it('knows special tokens by their names', () => {
    expect(['<s>', '</s>', '<pad>', '[CLS]', '[SEP]', '[MASK]', '<unk>', '<2en>', '<|endoftext|>', '<extra_id_3>'].map(role)).toEqual(['bos', 'eos', 'pad', 'cls', 'sep', 'mask', 'unk', 'language', 'eos', 'other']) // prettier-ignore
  })
})
