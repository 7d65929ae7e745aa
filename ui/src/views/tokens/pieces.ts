// How text, pieces and ids stand above each other, and how merges become a tree.

import type { Segmentation, Token } from '../../lib/types'
import { textWidth } from '../../lib/text'

type Word = Segmentation['words'][number]

/** Tokens that come from the same characters; most often one token. Characters are those of the text, as a reader counts them. */
export interface Group {
  characters: string[]
  /** Places in the sentence. */
  tokens: number[]
  /** Characters between the group before and this one that no token holds, such as spaces. */
  gap: string
}

export function groups(tokens: Token[], text: string): Group[] {
  const characters = spelled(tokens, text)
  const out: Group[] = []
  let read = 0
  let last: [number, number] | null = null
  tokens.forEach((token, index) => {
    const span = token.span
    if (!span) {
      out.push({ characters: [], tokens: [index], gap: '' })
      last = null
      return
    }
    if (last && span[0] < last[1] && out.length) {
      const group = out.at(-1)!
      group.tokens.push(index)
      if (span[1] > last[1]) group.characters.push(...characters.slice(last[1], span[1]))
      last = [last[0], Math.max(last[1], span[1])]
    } else {
      out.push({ characters: characters.slice(span[0], span[1]), tokens: [index], gap: characters.slice(read, span[0]).join('') })
      last = [...span]
    }
    read = Math.max(read, span[1])
  })
  return out
}

/** The characters of a text; those that it lacks, such as what a model wrote behind a prompt, from the tokens themselves. */
function spelled(tokens: Token[], text: string): string[] {
  const out = [...text]
  for (const { span, text: own } of tokens) {
    if (!span || span[1] <= out.length) continue
    const letters = [...own].slice(-(span[1] - span[0]))
    for (let i = span[0]; i < span[1]; i++) out[i] ??= letters[letters.length - (span[1] - i)] ?? ''
  }
  return Array.from(out, (each) => each ?? '')
}

export interface Placed extends Group {
  x: number
  line: number
  width: number
  /** Left edge and width of each token below the characters. */
  parts: { index: number; x: number; width: number }[]
}

/** Groups from left to right, in lines no wider than `room`: wide enough for the characters, for each piece, and for each id. */
export function placed(all: Group[], tokens: Token[], room: number, size = 15): Placed[] {
  let [x, line] = [0, 0]
  return all.map((group) => {
    const widths = group.tokens.map((index) => Math.max(30, textWidth(tokens[index].piece, 13) + 14, textWidth(String(tokens[index].id), 12) * 1.15 + 10))
    const width = Math.max(
      widths.reduce((a, b) => a + b + 2, -2),
      group.characters.reduce((sum, each) => sum + Math.max(textWidth(each, size), 7), 0) + 10,
    )
    if (x && x + width > room) [x, line] = [0, line + 1]
    const scale = width / (widths.reduce((a, b) => a + b + 2, -2) || 1)
    let at = x
    const parts = group.tokens.map((index, i) => {
      const part = { index, x: at, width: widths[i] * scale }
      at += part.width + 2
      return part
    })
    const out = { ...group, x, line, width, parts }
    x += width + 5
    return out
  })
}

/** A piece in the tree of merges. Leaves have step 0 and no children. */
export interface Merge {
  piece: string
  /** Leaves that it covers, [from, to). */
  from: number
  to: number
  /** The step that made it. */
  step: number
  rank?: number
  children: Merge[]
}

/** The forest of merges of a word: what remains at the end are its roots. Null where the steps are no merges of two neighbours. */
export function merges(steps: Word['steps']): { leaves: Merge[]; nodes: Merge[] } | null {
  if (!steps.length) return null
  const leaves: Merge[] = steps[0].pieces.map((piece, i) => ({ piece, from: i, to: i + 1, step: 0, children: [] }))
  const nodes: Merge[] = []
  let now = [...leaves]
  for (let step = 1; step < steps.length; step++) {
    const { pieces, merged, rank } = steps[step]
    if (!merged || pieces.length !== now.length - 1) return null
    const at = now.findIndex((each, i) => each.piece === merged[0] && now[i + 1]?.piece === merged[1] && pieces.every((piece, j) => j === i || piece === now[j < i ? j : j + 1].piece))
    if (at < 0) return null
    const made: Merge = { piece: pieces[at], from: now[at].from, to: now[at + 1].to, step, rank, children: [now[at], now[at + 1]] }
    nodes.push(made)
    now = [...now.slice(0, at), made, ...now.slice(at + 2)]
  }
  return { leaves, nodes }
}

/** How high each merge stands: one above the higher of its two parts. */
export const level = (node: Merge): number => (node.children.length ? 1 + Math.max(...node.children.map(level)) : 0)

export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let [dot, aa, bb] = [0, 0, 0]
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i]
    aa += a[i] * a[i]
    bb += b[i] * b[i]
  }
  return aa && bb ? dot / Math.sqrt(aa * bb) : 0
}

export const norm = (values: ArrayLike<number>): number => Math.sqrt(Array.from(values).reduce((sum, value) => sum + value * value, 0))

/** The server's notes in Chinese, as far as they are known. */
export function inChinese(note: string): string {
  const known: [RegExp, string][] = [
    [/^every character by itself$/, '每个字符各自独立'],
    [/^longest match: (.+)$/, '最长匹配：$1'],
    [/^(.+): (-?[\d.]+), in all (-?[\d.]+)$/, '$1：$2，合计 $3'],
    [/^(.+) has no piece: its bytes in UTF-8$/, '$1 不在词表中：改用它的 UTF-8 字节'],
    [/^(.+) has no piece$/, '$1 不在词表中'],
    [/^no piece begins with (.+): the whole word is lost$/, '没有以 $1 开头的子词：整个词成为未知词'],
    [/^a piece of its own, taken whole$/, '本身就是一个子词，整个取用'],
    [/^a word of the vocabulary$/, '词表中的词'],
    [/^no word of the vocabulary$/, '词表中没有这个词'],
    [/^longer than any word that is looked up$/, '太长，不去查找'],
  ]
  for (const [pattern, text] of known) if (pattern.test(note)) return note.replace(pattern, text)
  return note
}

/** What a special token is for, as a key of the words. */
export function role(piece: string): 'bos' | 'eos' | 'pad' | 'unk' | 'cls' | 'sep' | 'mask' | 'language' | 'other' {
  const name = piece.replace(/[<>[\]|]/g, '').toLowerCase()
  if (/^(s|bos|start|startoftext|begin_of_text)$/.test(name)) return 'bos'
  if (/^(\/s|eos|end|endoftext|end_of_text|im_end)$/.test(name)) return 'eos'
  if (name === 'pad') return 'pad'
  if (name === 'unk') return 'unk'
  if (name === 'cls') return 'cls'
  if (name === 'sep') return 'sep'
  if (name === 'mask') return 'mask'
  return /^2[a-z]{2,3}|^(to|lang)?_?[a-z]{2,3}_?[a-z]{0,2}$/.test(name) ? 'language' : 'other'
}
