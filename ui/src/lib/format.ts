// Numbers as text: short on the page, exact on hover.

/** Three significant figures for the page: 0.0314, 12.5, 1.2e-7, −∞. */
export function short(value: number): string {
  if (Number.isNaN(value)) return 'NaN'
  if (!Number.isFinite(value)) return value < 0 ? '−∞' : '∞'
  if (value === 0) return '0'
  const size = Math.abs(value)
  const text = size >= 10000 || size < 0.0005 ? value.toExponential(1) : size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : value.toFixed(size < 0.01 ? 4 : size < 1 ? 3 : 2)
  return text.replaceAll('-', '−').replace('e+', 'e')
}

/** The shortest text that is this float32 and no other. */
export function exact(value: number): string {
  if (!Number.isFinite(value)) return short(value)
  let digits = 6
  while (digits < 9 && Math.fround(Number(value.toPrecision(digits))) !== Math.fround(value)) digits++
  return String(Number(value.toPrecision(digits))).replaceAll('-', '−')
}

/** Always so many places, for columns that line up. */
export const fixed = (value: number, places = 2): string =>
  Number.isFinite(value) ? value.toFixed(places).replace(/^-(?=0\.?0*$)/, '').replace('-', '−') : short(value)

/** 0.0471 → "4.7%". */
export function percent(value: number): string {
  const n = value * 100
  return n > 0 && n < 0.1 ? '<0.1%' : `${n.toFixed(n >= 99.95 || n === 0 ? 0 : 1)}%`
}

/** 9158144 → "9.16 M". */
export function count(value: number): string {
  for (const [unit, name] of [[1e12, ' T'], [1e9, ' B'], [1e6, ' M'], [1e3, ' k']] as const)
    if (value >= unit) return Number((value / unit).toPrecision(3)) + name
  return String(value)
}

/** 65536 → "64 KiB". */
export function bytes(value: number): string {
  for (const [unit, name] of [[2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']] as const)
    if (value >= unit) return `${(value / unit).toFixed(value / unit >= 10 ? 0 : 1)} ${name}`
  return `${value} B`
}

/** What a reader sees of a piece: never nothing, and no space at its edge unless it is all there is. */
export const visible = (text: string): string => (text.trim() || text.replaceAll(' ', '␣') || '∅').replaceAll('\n', '⏎')

/** True where a token goes on with the word before it, such as "ing" behind "process". */
export function joins(tokens: { piece: string; text: string; special: boolean }[], index: number): boolean {
  const [before, token] = [tokens[index - 1], tokens[index]]
  if (!before || before.special || token.special) return false
  if (token.piece.startsWith('##')) return true
  const spaced = tokens.some((each) => /^[▁Ġ ]/.test(each.piece))
  const letter = /^[\p{L}\p{N}]$/u
  const [last, first] = [before.text.at(-1) ?? '', token.text.at(0) ?? '']
  return spaced && letter.test(last) && letter.test(first) && !/\p{Script=Han}/u.test(last + first)
}
