// A whole pass of a small model as steps that can be checked by hand: matrices that go in, the matrix that the model recorded, the same
// computed here, and for each number how it comes about.

import { fixed, visible } from '../../lib/format'
import type { Tensor } from '../../lib/tensor'
import type { Architecture, Part, Run, Token } from '../../lib/types'
import { normOf, product, softmaxRows, sumOf, turned } from './arithmetic'

type Numbers = ArrayLike<number>

export interface Matrix {
  /** As in a formula: "W_Q". */
  label: string
  /** The tensor's or weight's own name. */
  name: string
  values: Numbers
  rows: number
  cols: number
  rowLabels?: string[]
  colLabels?: string[]
  /** What stands before it: "×", "+", "=". */
  sign?: string
  /** Which of its numbers one number of the result is made of: a row, a column, that very number, or all in that place's row. */
  marks: 'row' | 'col' | 'cell' | 'bias' | 'other-row' | 'none'
}

export interface Step {
  id: string
  group: Group
  /** Names title and note in words.ts. */
  kind: string
  formula: string
  operands: Matrix[]
  result: Matrix
  /** What the page computes from the operands; null where it only shows. */
  computed: Float64Array | null
  /** How one number comes about, in lines. */
  explain: (row: number, col: number, places: number) => string[]
  values?: Record<string, string | number>
}

export type Group = 'encoder.input' | 'encoder.mixer' | 'encoder.ffn' | 'decoder.input' | 'decoder.mixer' | 'decoder.cross' | 'decoder.ffn' | 'output'

export interface Book {
  architecture: Architecture
  run: Run
  tensors: Map<string, Tensor>
  weights: Map<string, Tensor>
  layer: number
  head: number
  /** What each id of the output means, where it is known. */
  vocabulary?: string[] | null
}

const counted = (n: number) => Array.from({ length: n }, (_, i) => String(i))
const words = (tokens: Token[]) => tokens.map((token) => visible(token.text))
const num = (value: number, places: number) => fixed(value, places)
const signed = (value: number, places: number) => (num(value, places).startsWith('−') ? `(${num(value, places)})` : num(value, places))

const CURVES: Record<string, (x: number) => number> = { relu: (x) => Math.max(0, x), silu: (x) => x / (1 + Math.exp(-x)), tanh: Math.tanh }

/** Names of what a book of this layer needs: tensors that the run has, and weights. */
export function needed(architecture: Architecture, run: Run, layer: number): { tensors: string[]; weights: string[] } {
  const inside = (part: Part) => part.layer === null || part.layer === layerOf(architecture, part.stack ?? '', layer)
  const parts = architecture.parts.filter(inside)
  const tensors = run.tensors.filter((each) => parts.some((part) => part.id === each.part))
  const before = tensors.flatMap((each) => each.parents).filter((name) => run.tensors.some((each) => each.name === name))
  return { tensors: [...new Set([...tensors.map((each) => each.name), ...before])], weights: [...new Set(parts.flatMap((part) => Object.keys(part.weights)))] }
}

/** The layer at hand, as far as the stack has so many. */
export const layerOf = (architecture: Architecture, stack: string, layer: number): number =>
  Math.min(layer, Math.max(0, ...architecture.parts.filter((part) => part.stack === stack && part.layer !== null).map((part) => part.layer!)))

/** All steps, in the order of the pass. */
export function steps(book: Book): Step[] {
  const { architecture } = book
  return (['encoder', 'decoder'] as const).flatMap((stack) => (architecture.config[stack] ? [...begin(book, stack), ...layerSteps(book, stack)] : [])).concat(end(book))
}

function maker(book: Book) {
  const tensor = (name: string) => book.tensors.get(name)
  const weight = (name: string) => book.weights.get(name)
  const tokensOf = (name: string) => (name.startsWith('encoder') ? book.run.source : book.run.target)

  /** A tensor as a matrix, of several heads that of the one at hand. */
  function show(name: string, label: string, sign = '', marks: Matrix['marks'] = 'none', tokens = tokensOf(name)): Matrix | null {
    const found = tensor(name)
    if (!found) return null
    const [rows, cols] = found.shape.slice(-2)
    const heads = found.shape.length > 2 ? found.shape[0] : 1
    const head = heads === 1 ? 0 : Math.min(heads - 1, Math.floor((book.head * heads) / headsOf(name)))
    return { label, name, values: found.data.subarray(head * rows * cols, (head + 1) * rows * cols), rows, cols, rowLabels: words(tokens), colLabels: counted(cols), sign, marks }
  }
  const headsOf = (name: string) => book.architecture.parts.find((part) => part.layer !== null && name.startsWith(part.id + '.'))?.heads ?? 1

  /** A linear map as it is multiplied: in × out; stored is out × in. */
  function matrix(name: string, label: string, from = 0, size = 0): Matrix | null {
    const found = weight(name)
    if (!found) return null
    const [out, into] = found.shape
    const to = size ? from + size : out
    return { label, name, values: turned(found.data, out, into, from, to), rows: into, cols: to - from, rowLabels: counted(into), colLabels: counted(to - from), sign: '×', marks: 'col' }
  }

  function row(name: string, label: string, sign = '+', from = 0, size = 0): Matrix | null {
    const found = weight(name)
    if (!found) return null
    const values = found.data.subarray(from, size ? from + size : found.data.length)
    return { label, name, values, rows: 1, cols: values.length, colLabels: counted(values.length), sign, marks: 'bias' }
  }

  return { tensor, weight, show, matrix, row }
}

/** Words for x · w + b, number by number. */
function dotLines(a: Numbers, r: number, k: number, b: Numbers, c: number, m: number, bias: number | null, places: number, value: number, tail: (sum: number) => string = () => ''): string[] {
  const terms = Array.from({ length: k }, (_, i) => `${signed(a[r * k + i], places)} × ${signed(b[i * m + c], places)}`)
  const sum = terms.length ? Array.from({ length: k }, (_, i) => a[r * k + i] * b[i * m + c]).reduce((x, y) => x + y, 0) : 0
  return [`${terms.join(' + ')}${bias === null ? '' : ` + ${signed(bias, places)}`}${tail(sum)} = ${num(value, places)}`]
}

function linear(id: string, group: Group, kind: string, formula: string, x: Matrix | null, m: Matrix | null, b: Matrix | null, result: Matrix | null, values: Step['values'] = {}, factor = 1): Step[] {
  if (!result) return []
  const fits = x && m && x.cols === m.rows && m.cols === result.cols && x.rows === result.rows
  const operands = [x && { ...x, marks: 'row' as const }, m, b].filter((each): each is Matrix => !!each)
  const computed = fits ? product(x.values, m.values, x.rows, x.cols, m.cols, b?.values, factor) : null
  const explain = (r: number, c: number, places: number) =>
    fits ? dotLines(x.values, r, x.cols, m.values, c, m.cols, b ? b.values[c] : null, places, computed![r * m.cols + c], factor === 1 ? undefined : () => ` × ${num(factor, places)}`) : []
  return [{ id, group, kind, formula, operands: fits ? operands : [], result: { ...result, sign: fits ? '=' : '', marks: 'cell' }, computed, explain, values }]
}

function begin(book: Book, stack: 'encoder' | 'decoder'): Step[] {
  const { show, tensor, weight } = maker(book)
  const group = `${stack}.input` as Group
  const config = book.architecture.config
  const tokens = stack === 'encoder' ? book.run.source : book.run.target
  const out: Step[] = []
  const embedded = show(`${stack}.embedded`, 'X')
  const part = book.architecture.parts.find((each) => each.stack === stack && each.kind === 'embedding')
  const table = weight(Object.keys(part?.weights ?? {}).find((name) => name.endsWith('embed.weight')) ?? '')
  if (embedded && table) {
    const d = embedded.cols
    const factor = config.embed?.scale ? Math.sqrt(d) : 1
    const rows = new Float32Array(tokens.length * d)
    tokens.forEach((token, t) => rows.set(table.data.subarray(token.id * d, (token.id + 1) * d), t * d))
    const plain = !config.embed?.token_types
    const lookup: Matrix = { label: 'E[id]', name: table.name, values: rows, rows: tokens.length, cols: d, rowLabels: tokens.map((token) => `${visible(token.text)} → ${token.id}`), colLabels: counted(d), marks: 'cell' }
    out.push({
      id: `${stack}.embed`, group, kind: 'embed', formula: factor === 1 ? 'x_t = E[id_t]' : 'x_t = E[id_t] \\sqrt{d}', operands: [lookup], result: { ...embedded, sign: factor === 1 ? '=' : `× √${d} =`, marks: 'cell' }, values: { d, root: fixed(Math.sqrt(d), Number.isInteger(Math.sqrt(d)) ? 0 : 3), vocab: table.shape[0] },
      computed: plain ? Float64Array.from(rows, (value) => value * factor) : null,
      explain: (r, c, places) => [`E[${tokens[r].id}, ${c}]${factor === 1 ? '' : ` × √${d}`} = ${num(rows[r * d + c], places)}${factor === 1 ? '' : ` × ${num(factor, places)} = ${num(rows[r * d + c] * factor, places)}`}`],
    }) // prettier-ignore
  }
  const positions = show(`${stack}.positions`, 'P')
  const position = config[stack].position
  if (positions && position) {
    const { rows, cols } = positions
    const wave = position.type === 'sinusoidal'
    const halves = position.layout === 'halves'
    const angle = (r: number, c: number) => {
      const pair = halves ? c % (cols / 2) : Math.floor(c / 2)
      return { pair, at: r + (position.first ?? 0), value: (r + (position.first ?? 0)) * position.base ** ((-2 * pair) / cols), sine: halves ? c < cols / 2 : c % 2 === 0 }
    }
    const made = wave ? Float64Array.from({ length: rows * cols }, (_, i) => { const a = angle(Math.floor(i / cols), i % cols); return a.sine ? Math.sin(a.value) : Math.cos(a.value) }) : null // prettier-ignore
    out.push({
      id: `${stack}.position`, group, kind: wave ? 'position' : 'positionLearned', formula: wave ? `sin(t ω_i), cos(t ω_i),   ω_i = ${position.base}^{−2i/${cols}}` : 'P[t]', operands: [], result: { ...positions, sign: '', marks: 'cell' }, computed: made,
      explain: (r, c, places) => { if (!wave) return []; const a = angle(r, c); return [`${a.sine ? 'sin' : 'cos'}(${a.at} ÷ ${position.base}^(${2 * a.pair}/${cols})) = ${a.sine ? 'sin' : 'cos'}(${num(a.value, Math.max(places, 4))}) = ${num(made![r * cols + c], places)}`] },
    }) // prettier-ignore
  }
  const input = show(`${stack}.input`, 'X')
  if (embedded && positions && input && !config[stack].input_norm) out.push(...plus(`${stack}.sum`, group, 'sumInput', 'x_t + p_t', embedded, { ...positions, label: 'P' }, input))
  else if (input && config[stack].input_norm && tensor(`${stack}.input`)) out.push({ id: `${stack}.sum`, group, kind: 'normInput', formula: 'norm(x + p)', operands: [], result: { ...input, marks: 'cell' }, computed: null, explain: () => [] })
  return out
}

function plus(id: string, group: Group, kind: string, formula: string, a: Matrix | null, b: Matrix | null, result: Matrix | null): Step[] {
  if (!a || !b || !result) return []
  const computed = Float64Array.from(result.values, (_, i) => a.values[i] + b.values[i])
  return [{
    id, group, kind, formula, operands: [{ ...a, sign: '', marks: 'cell' }, { ...b, sign: '+', marks: 'cell' }], result: { ...result, sign: '=', marks: 'cell' }, computed,
    explain: (r, c, places) => [`${num(a.values[r * a.cols + c], places)} + ${signed(b.values[r * a.cols + c], places)} = ${num(computed[r * a.cols + c], places)}`],
  }] // prettier-ignore
}

function normStep(book: Book, id: string, group: Group, x: Matrix | null, part: string, after: string, config: Record<string, any>): Step[] {
  const { show, row } = maker(book)
  const result = show(after, 'Y')
  if (!x || !result) return []
  const [gamma, beta] = [row(part + '.weight', 'γ', ''), row(part + '.bias', 'β', '')]
  const rms = config?.type === 'rms'
  const eps = config?.eps ?? 1e-5
  const d = x.cols
  const about = Array.from({ length: x.rows }, (_, r) => normOf(x.values, r * d, d, eps, rms))
  const computed = Float64Array.from({ length: x.rows * d }, (_, i) => {
    const { mean, root } = about[Math.floor(i / d)]
    return ((x.values[i] - mean) / root) * (gamma?.values[i % d] ?? 1) + (beta?.values[i % d] ?? 0)
  })
  const stats: Matrix = { label: rms ? 'rms' : 'μ, σ^2', name: '', values: Float64Array.from(about.flatMap((each) => (rms ? [each.variance] : [each.mean, each.variance]))), rows: x.rows, cols: rms ? 1 : 2, rowLabels: x.rowLabels, colLabels: rms ? ['x²'] : ['μ', 'σ²'], marks: 'row' }
  return [{
    id, group, kind: rms ? 'normRms' : 'norm', formula: rms ? 'γ \\frac{x}{\\sqrt{mean(x^2) + ε}}' : 'γ \\frac{x − μ}{\\sqrt{σ^2 + ε}} + β', operands: [{ ...x, sign: '', marks: 'row' }, stats, ...[gamma, beta].filter((each): each is Matrix => !!each)], result: { ...result, sign: '=', marks: 'cell' }, computed, values: { eps, d },
    explain: (r, c, places) => {
      const { mean, variance, root } = about[r]
      const all = Array.from({ length: d }, (_, i) => x.values[r * d + i])
      const value = x.values[r * d + c]
      return [
        ...(rms ? [] : [`μ = (${all.map((each) => signed(each, places)).join(' + ')}) ÷ ${d} = ${num(mean, places)}`]),
        `${rms ? 'mean(x²)' : 'σ²'} = (${all.map((each) => (rms ? `${signed(each, places)}²` : `(${num(each, places)} − ${signed(mean, places)})²`)).join(' + ')}) ÷ ${d} = ${num(variance, places)}`,
        `${rms ? num(value, places) : `(${num(value, places)} − ${signed(mean, places)})`} ÷ √(${num(variance, places)} + ${eps}) = ${num((value - mean) / root, places)}`,
        `${num((value - mean) / root, places)} × ${signed(gamma?.values[c] ?? 1, places)}${beta ? ` + ${signed(beta.values[c], places)}` : ''} = ${num(computed[r * d + c], places)}`,
      ]
    },
  }] // prettier-ignore
}

function layerSteps(book: Book, stack: 'encoder' | 'decoder'): Step[] {
  const { show } = maker(book)
  const layer = layerOf(book.architecture, stack, book.layer)
  const config = book.architecture.config[stack].blocks?.[layer] ?? {}
  const out: Step[] = []
  for (const sub of ['mixer', 'cross', 'ffn'] as const) {
    const part = book.architecture.parts.find((each) => each.id === `${stack}.layers.${layer}.${sub}`)
    if (!part) continue
    const group = `${stack}.${sub}` as Group
    const path = part.id
    const sum = book.run.tensors.find((each) => each.name === path + '_residual.sum')
    const stream = sum?.parents.find((name) => name !== path + '.result' && book.tensors.has(name)) ?? `${stack}.input`
    const norm = book.run.tensors.find((each) => each.name === path + '_residual.normed')
    const pre = config.order === 'pre'
    if (pre && norm) out.push(...normStep(book, path + '.norm', group, show(norm.parents.find((name) => book.tensors.has(name)) ?? stream, 'X'), path + '_residual.norm', norm.name, config.norm))
    const x = pre && norm ? show(norm.name, 'X') : show(stream, 'X')
    out.push(...(sub === 'ffn' ? ffnSteps(book, part, group, x, config.ffn) : attentionSteps(book, part, group, x, config[sub] ?? {}, sub === 'cross')))
    out.push(...plus(path + '.sum', group, 'residual', 'x + f(x)', show(stream, 'X'), show(path + '.result', sub === 'ffn' ? 'F' : 'A'), show(path + '_residual.sum', 'X')))
    if (!pre && norm) out.push(...normStep(book, path + '.norm', group, show(path + '_residual.sum', 'X'), path + '_residual.norm', norm.name, config.norm))
  }
  return out
}

function attentionSteps(book: Book, part: Part, group: Group, x: Matrix | null, config: Record<string, any>, cross: boolean): Step[] {
  const { show, matrix, row } = maker(book)
  const path = part.id
  const { run } = book
  const plainOf = (tap: string, label: string, kind: string): Step[] => {
    const result = show(`${path}.${tap}`, label)
    return result ? [{ id: `${path}.${tap}`, group, kind, formula: '', operands: [], result: { ...result, marks: 'cell' }, computed: null, explain: () => [] }] : []
  }
  if (!run.tensors.some((each) => each.name === path + '.pattern') || config.type !== 'attention') return plainOf('result', 'A', 'otherMixer')

  const keysOf = cross ? run.source : path.startsWith('encoder') ? run.source : run.target
  const memory = cross ? show('encoder.output', 'M') : x
  const heads = part.heads ?? 1
  const [q, k, v] = [show(path + '.q', 'Q'), show(path + '.k', 'K', '', 'none', keysOf), show(path + '.v', 'V', '', 'none', keysOf)]
  if (!q || !k || !v) return plainOf('result', 'A', 'otherMixer')
  const dk = q.cols
  const groups = config.n_kv_heads ?? heads
  const of = { q: book.head, k: Math.floor((book.head * groups) / heads), v: Math.floor((book.head * groups) / heads) }
  const out: Step[] = []
  for (const [tap, word, result] of [['q', 'query', q], ['k', 'key', k], ['v', 'value', v]] as const) {
    const from = of[tap] * result.cols
    // Rotated keys and queries are no longer the product alone.
    const whole = !(config.rotary && tap !== 'v')
    const letter = tap.toUpperCase()
    out.push(...linear(`${path}.${tap}`, group, tap, `${letter} = ${tap !== 'q' && cross ? 'M' : 'X'} W_${letter} + b_${letter}`, whole ? (tap === 'q' ? x : memory) : null, matrix(`${path}.${word}.weight`, `W_${letter}`, from, result.cols), row(`${path}.${word}.bias`, `b_${letter}`, '+', from, result.cols), result))
  }
  const scores = show(path + '.scores', 'S')
  const pattern = show(path + '.pattern', 'A')
  if (!scores || !pattern) return out
  const labels = words(keysOf)
  const scale = config.scale ?? 1 / Math.sqrt(dk)
  const turnedKeys: Matrix = { label: 'K^T', name: k.name, values: turned(k.values, k.rows, k.cols), rows: k.cols, cols: k.rows, rowLabels: counted(k.cols), colLabels: labels, sign: '×', marks: 'col' }
  const biased = !cross && !!book.architecture.config[part.stack ?? '']?.bias
  const made = product(q.values, turnedKeys.values, q.rows, dk, k.rows, null, scale)
  out.push({
    id: path + '.scores', group, kind: 'scores', formula: config.scale ? `S = Q K^T ${fixed(scale, 3)}` : 'S = \\frac{Q K^T}{\\sqrt{d_k}}', operands: [{ ...q, sign: '', marks: 'row' }, turnedKeys], result: { ...scores, colLabels: labels, sign: config.scale ? `× ${fixed(scale, 3)} =` : `÷ √${dk} =`, marks: 'cell' }, computed: biased ? null : made, values: { d: dk, root: fixed(Math.sqrt(dk), Number.isInteger(Math.sqrt(dk)) ? 0 : 3) },
    explain: (r, c, places) => {
      const [line] = dotLines(q.values, r, dk, turnedKeys.values, c, k.rows, null, places, made[r * k.rows + c] / scale)
      return [line, `${num(made[r * k.rows + c] / scale, places)} ${config.scale ? `× ${num(scale, places)}` : `÷ ${num(Math.sqrt(dk), places)}`} = ${num(made[r * k.rows + c], places)}`]
    },
  }) // prettier-ignore
  const real = keysOf === run.source ? run.source_mask : []
  const hides = (r: number, c: number) => (part.causal === true && !cross && c > r) || real[c] === false || (!!config.window && !cross && Math.abs(r - c) >= config.window)
  const masked = Float64Array.from(scores.values, (value, i) => (hides(Math.floor(i / scores.cols), i % scores.cols) ? -Infinity : value))
  const seen: Matrix = { ...scores, label: 'S', name: '', values: masked, colLabels: labels }
  if (masked.some((value) => value === -Infinity))
    out.push({
      id: path + '.mask', group, kind: part.causal && !cross ? 'mask' : 'maskPadding', formula: 'S_{ts} = −∞', operands: [], result: { ...seen, sign: '', marks: 'cell' }, computed: null,
      explain: (r, c, places) => [`${visible((path.startsWith('encoder') ? run.source : run.target)[r].text)} → ${labels[c]}: ${masked[r * scores.cols + c] === -Infinity ? `${num(scores.values[r * scores.cols + c], places)} → −∞` : num(masked[r * scores.cols + c], places)}`],
    }) // prettier-ignore
  const weights = softmaxRows(masked, scores.rows, scores.cols)
  out.push({
    id: path + '.pattern', group, kind: 'softmax', formula: 'A_{ts} = \\frac{e^{S_{ts}}}{Σ_j e^{S_{tj}}}', operands: [{ ...seen, sign: '', marks: 'row' }], result: { ...pattern, colLabels: labels, sign: 'softmax', marks: 'cell' }, computed: weights,
    explain: (r, c, places) => softmaxLines(masked, r, c, scores.cols, places),
  }) // prettier-ignore
  const z = show(path + '.z', 'Z')
  out.push(...linear(path + '.z', group, 'gather', 'Z = A V', { ...pattern, colLabels: labels }, { ...v, sign: '×', marks: 'col' }, null, z))
  const joined = joinedHeads(book, path)
  out.push(...linear(path + '.result', group, 'join', `A = Z W_O${config.bias === false ? '' : ' + b_O'}`, joined, matrix(path + '.out.weight', 'W_O'), row(path + '.out.bias', 'b_O'), show(path + '.result', 'A'), { heads }))
  return out
}

/** z of all heads, side by side. */
function joinedHeads(book: Book, path: string): Matrix | null {
  const z = book.tensors.get(path + '.z')
  const show = maker(book).show(path + '.z', 'Z')
  if (!z || !show || z.shape.length < 3) return show
  const [heads, rows, width] = z.shape
  const values = new Float32Array(rows * heads * width)
  for (let h = 0; h < heads; h++) for (let r = 0; r < rows; r++) values.set(z.data.subarray((h * rows + r) * width, (h * rows + r + 1) * width), r * heads * width + h * width)
  return { ...show, values, cols: heads * width, colLabels: counted(heads * width) }
}

function softmaxLines(values: Numbers, r: number, c: number, cols: number, places: number): string[] {
  const all = Array.from({ length: cols }, (_, i) => values[r * cols + i])
  const exps = all.map((value) => Math.exp(value))
  const sum = sumOf(exps)
  if (all[c] === -Infinity) return [`e^(−∞) = 0`]
  // Only a few of a long row are written out.
  const terms = cols > 8 ? [...exps.slice(0, 6).map((each) => num(each, places)), '…', num(exps[cols - 1], places)] : exps.map((each) => num(each, places))
  return [`e^${signed(all[c], places)} = ${num(exps[c], places)}`, `${num(exps[c], places)} ÷ (${terms.join(' + ')}) = ${num(exps[c], places)} ÷ ${num(sum, places)} = ${num(exps[c] / sum, places)}`]
}

function ffnSteps(book: Book, part: Part, group: Group, x: Matrix | null, config: Record<string, any> | null): Step[] {
  const { show, matrix, row } = maker(book)
  const path = part.id
  const out: Step[] = []
  const gated = config?.type === 'gated'
  const plain = config?.type === 'mlp' || gated
  const pre = show(path + '.pre', 'H')
  const post = show(path + '.post', 'H')
  const first = gated ? 'gate' : 'up'
  out.push(...linear(path + '.pre', group, 'up', gated ? 'H = X W' : 'H = X W_1 + b_1', plain ? x : null, matrix(`${path}.${first}.weight`, gated ? 'W' : 'W_1'), row(`${path}.${first}.bias`, 'b_1'), pre, { f: pre?.cols ?? 0, d: x?.cols ?? 0 }))
  const linearPart = gated ? show(path + '.linear', 'L') : null
  if (linearPart) out.push(...linear(path + '.linear', group, 'upLinear', 'L = X V', x, matrix(path + '.up.weight', 'V'), row(path + '.up.bias', 'b'), linearPart))
  const curve = plain ? CURVES[config?.activation] : undefined
  if (pre && post) {
    const computed = curve ? Float64Array.from(pre.values, (value, i) => curve(value) * (linearPart ? linearPart.values[i] : 1)) : null
    out.push({
      id: path + '.post', group, kind: config?.activation === 'relu' && !gated ? 'relu' : 'curve', formula: config?.activation === 'relu' && !gated ? 'max(0, H)' : gated ? `${config?.activation}(H) ⊙ L` : String(config?.activation ?? 'f') + '(H)', operands: [{ ...pre, sign: '', marks: 'cell' }, ...(linearPart ? [{ ...linearPart, sign: '⊙', marks: 'cell' as const }] : [])], result: { ...post, sign: '→', marks: 'cell' }, computed, values: { name: config?.activation ?? '' },
      explain: (r, c, places) => {
        const i = r * pre.cols + c
        if (config?.activation === 'relu' && !gated) return [`max(0, ${num(pre.values[i], places)}) = ${num(post.values[i], places)}`]
        return [`${config?.activation ?? 'f'}(${num(pre.values[i], places)})${linearPart ? ` × ${signed(linearPart.values[i], places)}` : ''} = ${num(post.values[i], places)}`]
      },
    }) // prettier-ignore
  }
  out.push(...linear(path + '.result', group, 'down', 'F = H W_2 + b_2', plain ? post : null, matrix(path + '.down.weight', 'W_2'), row(path + '.down.bias', 'b_2'), show(path + '.result', 'F'), { f: pre?.cols ?? 0, d: x?.cols ?? 0 }))
  return out
}

/** Output layer, softmax, token. */
function end(book: Book): Step[] {
  const { show, tensor } = maker(book)
  const { architecture, run } = book
  const found = tensor('head.logits')
  const stack = architecture.config.decoder ? 'decoder' : 'encoder'
  const output = show(`${stack}.output`, 'Y')
  const part = architecture.parts.find((each) => each.id === 'head')
  const name = Object.keys(part?.weights ?? {}).find((each) => /(head|embed)\.weight$/.test(each)) ?? ''
  const table = book.weights.get(name)
  const out: Step[] = []
  const config = architecture.config[stack]
  if (config?.final_norm) {
    const parent = run.tensors.find((each) => each.name === `${stack}.output`)?.parents.find((each) => book.tensors.has(each))
    if (parent) out.push(...normStep(book, `${stack}.final_norm`, 'output', show(parent, 'X'), `${stack}.final_norm`, `${stack}.output`, config.final_norm))
  }
  if (!found || found.shape.length !== 2 || !output || !table || architecture.config.head?.type !== 'lm') return out
  const [rows, cols] = found.shape
  const labels = book.vocabulary?.length === cols ? book.vocabulary.map(visible) : counted(cols)
  const logits: Matrix = { label: 'logits', name: 'head.logits', values: found.data, rows, cols, rowLabels: words(run.target), colLabels: labels, marks: 'cell' }
  const matrix: Matrix = { label: architecture.config.tie ? 'E^T' : 'W', name, values: turned(table.data, table.shape[0], table.shape[1]), rows: table.shape[1], cols: table.shape[0], rowLabels: counted(table.shape[1]), colLabels: labels, sign: '×', marks: 'col' }
  const bias = book.weights.get('head.bias')
  const factor = architecture.config.head?.scale ? table.shape[1] ** -0.5 : 1
  out.push(...linear('head.logits', 'output', 'logits', architecture.config.tie ? 'logits = Y E^T' : 'logits = Y W', output, matrix, bias ? { label: 'b', name: 'head.bias', values: bias.data, rows: 1, cols, colLabels: labels, sign: '+', marks: 'bias' } : null, logits, { v: cols }, factor))
  const chances = softmaxRows(found.data, rows, cols)
  out.push({
    id: 'softmax', group: 'output', kind: 'probabilities', formula: 'p_i = \\frac{e^{logit_i}}{Σ_j e^{logit_j}}', operands: [], result: { ...logits, label: 'p', name: '', values: chances, sign: '', marks: 'cell' }, computed: null,
    explain: (r, c, places) => softmaxLines(found.data, r, c, cols, places),
  }) // prettier-ignore
  return out
}
