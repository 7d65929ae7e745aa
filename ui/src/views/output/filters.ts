// From logits to the probabilities that are drawn from: temperature, then top-k, top-p, min-p, as generate/processors.py has them.

export interface Filters {
  /** 0 is greedy, whatever the filters say. */
  temperature: number
  /** 0 keeps all. */
  topK: number
  topP: number
  minP: number
}

/** Everything by rank: 0 is the likeliest token. What a filter keeps is a beginning of the ranks. */
export interface Stages {
  /** Logits by rank. */
  logits: Float32Array
  /** softmax(z), the model's own. */
  plain: Float64Array
  /** softmax(z / τ). */
  tempered: Float64Array
  /** How many are left behind each filter. */
  afterK: number
  afterP: number
  afterMin: number
  /** What of `tempered` is left, before it is made 1 again. */
  left: number
  /** Renormalised after top-k; its running sum is what top-p looks at. */
  nucleus: Float64Array
  /** What is drawn from. */
  final: Float64Array
}

/** Ids from the largest logit to the smallest; of equals the lower id first. */
export function ranked(logits: ArrayLike<number>): Uint32Array {
  return Uint32Array.from({ length: logits.length }, (_, i) => i).sort((a, b) => logits[b] - logits[a] || a - b)
}

/** e^(x − max), over their sum. −∞ becomes 0. */
export function softmax(values: ArrayLike<number>, count = values.length): Float64Array {
  const out = new Float64Array(values.length)
  let high = -Infinity
  let sum = 0
  for (let i = 0; i < count; i++) high = Math.max(high, values[i])
  for (let i = 0; i < count; i++) sum += out[i] = Math.exp(values[i] - high)
  for (let i = 0; i < count; i++) out[i] /= sum || 1
  return out
}

/** `sorted`: logits by rank, largest first. */
export function stages(sorted: Float32Array, { temperature, topK, topP, minP }: Filters): Stages {
  const size = sorted.length
  const plain = softmax(sorted)
  if (temperature === 0) {
    const best = new Float64Array(size)
    best[0] = 1
    return { logits: sorted, plain, tempered: best, afterK: 1, afterP: 1, afterMin: 1, left: 1, nucleus: best, final: best }
  }
  // In float32, as the toolkit does, so that a tie here is a tie there.
  const cooled = Float32Array.from(sorted, (z) => Math.fround(z - sorted[0]) / temperature)
  const tempered = softmax(cooled)

  let afterK = topK > 0 && topK < size ? topK : size
  while (afterK < size && cooled[afterK] === cooled[afterK - 1]) afterK++

  const nucleus = softmax(cooled, afterK)
  let afterP = afterK
  if (topP < 1) {
    let before = 0
    for (afterP = 0; afterP < afterK && (afterP === 0 || before < topP); afterP++) before += nucleus[afterP]
  }

  let afterMin = afterP
  if (minP > 0) while (afterMin > 1 && cooled[afterMin - 1] < Math.fround(cooled[0] + Math.log(minP))) afterMin--

  let left = 0
  for (let i = 0; i < afterMin; i++) left += tempered[i]
  return { logits: sorted, plain, tempered, afterK, afterP, afterMin, left, nucleus, final: softmax(cooled, afterMin) }
}

/** In bits: 0 is certain, log2(V) knows nothing. */
export function entropy(probabilities: ArrayLike<number>): number {
  let bits = 0
  for (let i = 0; i < probabilities.length; i++) if (probabilities[i] > 0) bits -= probabilities[i] * Math.log2(probabilities[i])
  return bits + 0
}

/** The rank at which the running sum passes u: one draw. */
export function draw(probabilities: ArrayLike<number>, u: number, count = probabilities.length): number {
  let sum = 0
  for (let i = 0; i < count; i++) if ((sum += probabilities[i]) > u) return i
  return Math.max(0, count - 1)
}

/** Which filter drops a rank; null where it stays. */
export function reason({ afterK, afterP, afterMin }: Stages, rank: number): 'k' | 'p' | 'min' | null {
  return rank >= afterK ? 'k' : rank >= afterP ? 'p' : rank >= afterMin ? 'min' : null
}

/** The first `most` ranks and those asked for, in order. */
export function shownRanks(size: number, most: number, wanted: number[]): number[] {
  const out = new Set(Array.from({ length: Math.min(size, most) }, (_, i) => i))
  for (const rank of wanted) if (rank >= 0 && rank < size) out.add(rank)
  return [...out].sort((a, b) => a - b)
}
