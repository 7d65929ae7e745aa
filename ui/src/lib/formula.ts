// A little of TeX's notation, enough for this page: x_t, Q K^T, \frac{a}{b}, \sqrt{d}. Words of two or more letters stand upright.

export type Node =
  | { kind: 'italic' | 'upright' | 'sign' | 'space'; text: string }
  | { kind: 'scripts'; base: Node[]; sub?: Node[]; sup?: Node[] }
  | { kind: 'frac'; top: Node[]; bottom: Node[] }
  | { kind: 'sqrt'; inner: Node[] }

export function parse(source: string): Node[] {
  let at = 0

  function list(closing: boolean): Node[] {
    const out: Node[] = []
    while (at < source.length) {
      if (source[at] === '}') {
        if (closing) return at++, out
        throw new SyntaxError(`a } too many in ${source}`)
      }
      if (source[at] === '_' || source[at] === '^') {
        const last = out.at(-1)
        const held = last?.kind === 'scripts' ? last : ({ kind: 'scripts', base: out.splice(-1) } as Node & { kind: 'scripts' })
        if (held !== last) out.push(held)
        held[source[at++] === '_' ? 'sub' : 'sup'] = argument()
      } else out.push(...one())
    }
    if (closing) throw new SyntaxError(`a } is missing in ${source}`)
    return out
  }

  const argument = (): Node[] => (source[at] === '{' ? (at++, list(true)) : one())

  function one(): Node[] {
    const rest = source.slice(at)
    const take = (pattern: RegExp) => {
      const found = pattern.exec(rest)?.[0]
      if (found) at += found.length
      return found
    }
    if (rest[0] === '{') return at++, list(true)
    if (take(/^\\frac(?=\{)/)) return [{ kind: 'frac', top: argument(), bottom: argument() }]
    if (take(/^\\sqrt(?=\{)/)) return [{ kind: 'sqrt', inner: argument() }]
    const space = take(/^\s+/)
    if (space) return [{ kind: 'space', text: ' ' }]
    const word = take(/^\p{L}{2,}|^\d+(\.\d+)?/u)
    if (word) return [{ kind: 'upright', text: word }]
    const letter = take(/^\p{L}/u)
    if (letter) return [{ kind: /\p{Script=Han}/u.test(letter) ? 'upright' : 'italic', text: letter }]
    return [{ kind: 'sign', text: take(/^./su) ?? '' }]
  }

  return list(false)
}
