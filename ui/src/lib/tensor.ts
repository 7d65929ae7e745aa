// Tensors as flat float32 with named axes: "HTS" and [4, 9, 12].

export interface Tensor {
  name: string
  axes: string
  shape: number[]
  data: Float32Array
}

/** What remains after fixing some axes, by small letter: `slice(pattern, { h: 3 })` of "HTS" is "TS". */
export function slice(tensor: Tensor, fix: Record<string, number>): Tensor {
  let { axes, shape, data } = tensor
  for (const [axis, index] of Object.entries(fix)) {
    const at = axes.toLowerCase().indexOf(axis.toLowerCase())
    if (at < 0) continue
    if (index < 0 || index >= shape[at]) throw new RangeError(`${tensor.name}: ${axis} = ${index}, but it has ${shape[at]}`)
    const inner = product(shape.slice(at + 1))
    const outer = product(shape.slice(0, at))
    const out = new Float32Array(outer * inner)
    for (let o = 0; o < outer; o++) out.set(data.subarray((o * shape[at] + index) * inner, (o * shape[at] + index + 1) * inner), o * inner)
    axes = axes.slice(0, at) + axes.slice(at + 1)
    shape = shape.toSpliced(at, 1)
    data = out
  }
  return { name: tensor.name, axes, shape, data }
}

/** One row of the last axis: `rowOf(x, 2)` of "TD" is D numbers. */
export function rowOf(tensor: Tensor, index: number): Float32Array {
  const width = tensor.shape.at(-1) ?? 1
  return tensor.data.subarray(index * width, (index + 1) * width)
}

export const at = (tensor: Tensor, row: number, col: number): number => tensor.data[row * tensor.shape[1] + col]

export const product = (numbers: number[]): number => numbers.reduce((a, b) => a * b, 1)

/** Finite extremes; masked cells hold −∞. */
export function extent(values: ArrayLike<number>): [number, number] {
  let low = Infinity
  let high = -Infinity
  for (let i = 0; i < values.length; i++) {
    const v = values[i]
    if (!Number.isFinite(v)) continue
    if (v < low) low = v
    if (v > high) high = v
  }
  return low > high ? [0, 0] : [low, high]
}
