// Which of many weights are drawn as lines between tokens: the heavy ones.

export interface Link {
  row: number
  col: number
  weight: number
}

/** The links of a rows × cols matrix with at least `least` weight, heaviest first, no more than `most`; of one row where `only` ≥ 0. */
export function links(values: ArrayLike<number>, rows: number, cols: number, { least = 0.04, most = 600, only = -1 } = {}): Link[] {
  const out: Link[] = []
  for (let row = only < 0 ? 0 : only; row < (only < 0 ? rows : Math.min(rows, only + 1)); row++)
    for (let col = 0; col < cols; col++) {
      const weight = values[row * cols + col]
      if (weight >= least) out.push({ row, col, weight })
    }
  return out.sort((a, b) => b.weight - a.weight).slice(0, most)
}

/** A smooth line from (x0, y0) to (x1, y1), level at both ends. */
export function across(x0: number, y0: number, x1: number, y1: number): string {
  const middle = (x0 + x1) / 2
  return `M${x0},${y0}C${middle},${y0} ${middle},${y1} ${x1},${y1}`
}

/** An arc over a line of tokens; a token that looks at itself has a small loop. */
export function over(x0: number, x1: number, base: number, most = 160): string {
  if (x0 === x1) return `M${x0 - 5},${base}C${x0 - 11},${base - 22} ${x0 + 11},${base - 22} ${x0 + 5},${base}`
  const height = Math.min(most, 14 + Math.abs(x1 - x0) * 0.42)
  return `M${x0},${base}C${x0},${base - height} ${x1},${base - height} ${x1},${base}`
}
