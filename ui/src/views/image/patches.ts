// An image as the model has it: patches in reading order, and the arithmetic of ViT (Dosovitskiy et al. 2021) over them.

export interface Pixels {
  width: number
  height: number
  /** RGBA, as a canvas gives it. */
  data: ArrayLike<number>
}

export interface Cut {
  /** Height and width of a patch. */
  patch: [number, number]
  channels: number
  /** What is taken away of each channel, and what it is divided by. */
  mean: number[]
  deviation: number[]
  classToken: boolean
}

/** How a model cuts images, as its configuration says it. */
export function cutOf(config: Record<string, any>): Cut | null {
  const embed = config.embed
  if (embed?.type !== 'patches') return null
  const half = Array(embed.channels).fill(0.5)
  const side = (value: number | number[]): [number, number] => (typeof value === 'number' ? [value, value] : [value[0], value[1]])
  return { patch: side(embed.patch_size), channels: embed.channels, mean: embed.mean ?? half, deviation: embed.deviation ?? half, classToken: !!embed.class_token }
}

/** One patch as the model reads it: (pixel / 255 − mean) / deviation, channel by channel, row by row. */
export function patchOf(pixels: Pixels, index: number, cut: Cut): Float32Array {
  const [tall, wide] = cut.patch
  const across = Math.floor(pixels.width / wide)
  const [top, left] = [Math.floor(index / across) * tall, (index % across) * wide]
  return Float32Array.from({ length: cut.channels * tall * wide }, (_, i) => {
    const channel = Math.floor(i / (tall * wide))
    const [y, x] = [top + (Math.floor(i / wide) % tall), left + (i % wide)]
    return (pixels.data[(y * pixels.width + x) * 4 + channel] / 255 - cut.mean[channel]) / cut.deviation[channel]
  })
}

export const dot = (a: ArrayLike<number>, b: ArrayLike<number>): number => {
  let sum = 0
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i]
  return sum
}

/** Cosine of the angle between any two rows, n × n. */
export function cosines(rows: ArrayLike<number>, n: number, width: number): Float32Array {
  const row = (i: number) => Array.prototype.slice.call(rows, i * width, (i + 1) * width) as number[]
  const units = Array.from({ length: n }, (_, i) => {
    const values = row(i)
    const length = Math.sqrt(dot(values, values)) || 1
    return values.map((value) => value / length)
  })
  const out = new Float32Array(n * n)
  for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) out[i * n + j] = out[j * n + i] = dot(units[i], units[j])
  return out
}

/** Mean over heads of one layer's patterns, (heads, n, n). */
export function overHeads(pattern: ArrayLike<number>, heads: number, n: number): Float32Array {
  return Float32Array.from({ length: n * n }, (_, i) => {
    let sum = 0
    for (let h = 0; h < heads; h++) sum += pattern[h * n * n + i]
    return sum / heads
  })
}

/**
 * Attention rollout (Abnar and Zuidema 2020, section 3): each layer is half its mean pattern and half the identity, since the residual
 * passes by; their product says how much of each input is mixed into each output. `patterns` are (n, n), the first layer first.
 */
export function rollout(patterns: ArrayLike<number>[], n: number): Float32Array {
  let all = Float32Array.from({ length: n * n }, (_, i) => (i % (n + 1) === 0 ? 1 : 0))
  for (const pattern of patterns) {
    const next = new Float32Array(n * n)
    for (let i = 0; i < n; i++)
      for (let k = 0; k < n; k++) {
        const weight = 0.5 * pattern[i * n + k] + (i === k ? 0.5 : 0)
        if (weight) for (let j = 0; j < n; j++) next[i * n + j] += weight * all[k * n + j]
      }
    all = next
  }
  return all
}

/** Mean of the rows of (n, n): what a model that averages all patches looks at. */
export const overRows = (values: ArrayLike<number>, n: number): Float32Array =>
  Float32Array.from({ length: n }, (_, j) => {
    let sum = 0
    for (let i = 0; i < n; i++) sum += values[i * n + j]
    return sum / n
  })

export interface Ink {
  /** Longer side of what was drawn. */
  extent: number
  /** Centre of mass. */
  x: number
  y: number
}

/** How large a drawing is, and where its weight lies; `ink` is 0 … 255, row by row. Null where nothing was drawn. */
export function inkOf(ink: ArrayLike<number>, width: number, height: number, least = 24): Ink | null {
  let [left, top, right, bottom, mass, x, y] = [width, height, -1, -1, 0, 0, 0]
  for (let i = 0; i < width * height; i++) {
    if (ink[i] < least) continue
    const [c, r] = [i % width, Math.floor(i / width)]
    left = Math.min(left, c)
    right = Math.max(right, c)
    top = Math.min(top, r)
    bottom = Math.max(bottom, r)
    mass += ink[i]
    x += ink[i] * (c + 0.5)
    y += ink[i] * (r + 0.5)
  }
  return mass ? { extent: Math.max(right - left, bottom - top) + 1, x: x / mass, y: y / mass } : null
}

/** As MNIST's digits are made: 20 of 28 pixels large, the centre of mass in the middle. [scale, x, y], for drawing it into a square of `side`. */
export function centred(ink: Ink, side: number, share = 20 / 28): [number, number, number] {
  const scale = (side * share) / ink.extent
  return [scale, side / 2 - scale * ink.x, side / 2 - scale * ink.y]
}

/** Bytes as base64. */
export function base64(bytes: Uint8Array): string {
  let text = ''
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192))
  return btoa(text)
}
